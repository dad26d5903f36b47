"""The task that sends the batches of a coalescer, and the end of its event loop during a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

from dibs.errors import OutcomeUnknown

T = TypeVar("T")

#: The most seconds for which the end of an event loop waits for the batch in flight.
LOOP_END_SECONDS: Final = 5.0
NO_REPLY: Final = "the event loop ended before the reply arrived; the call may or may not have happened"


class FlushTask(asyncio.Task[None]):
    """A task that finishes its batch when its event loop ends.

    asyncio.run and other runners cancel all tasks after they have stopped the loop, and then run the loop
    until these tasks end. The batch in flight was sent, so such a cancellation takes effect only after
    LOOP_END_SECONDS. A cancellation on the running loop takes effect at once.
    """

    def __init__(self, flush: Coroutine[Any, Any, None], on_loop_end: Callable[[], None]) -> None:
        # An empty context, because the batch belongs to all of its callers and not to the first one alone.
        super().__init__(flush, loop=asyncio.get_running_loop(), context=Context())
        self._on_loop_end = on_loop_end
        self._is_loop_ending = False

    def cancel(self, msg: Any | None = None) -> bool:
        loop = self.get_loop()
        if self.done() or loop.is_running() or loop.is_closed() or self._is_loop_ending:
            return super().cancel(msg)
        self._is_loop_ending = True
        self._on_loop_end()
        loop.call_later(LOOP_END_SECONDS, super().cancel)
        return True


async def wait_at_loop_end(answer: asyncio.Future[T]) -> T:
    """Return the answer of a call that was in flight when the end of its event loop cancelled its caller.

    The task of the caller is cancelled at its next await instead, so that it ends. Raises the error of the
    call, and OutcomeUnknown if the answer does not arrive in time.
    """
    try:
        await asyncio.wait([answer], timeout=LOOP_END_SECONDS + 1)
    finally:
        if (task := asyncio.current_task()) is not None:
            task.cancel()
    if not answer.done():
        raise OutcomeUnknown(NO_REPLY)
    return answer.result()
