"""A call of a blocking thread that runs on an event loop, and its end if the event loop ends first."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from dibs.client.connection.thread_callbacks import CHECK_SECONDS, CallerThread
from dibs.errors import DibsError, NotRunning, OutcomeUnknown

T = TypeVar("T")

#: The async forms of the calls that change no job. If their event loop ends they raise NotRunning, and all
#: others OutcomeUnknown.
_READS: Final = frozenset(
    (
        "async for",
        "async for ... in ticket.progress(...)",
        "async with",
        "await app.close(...)",
        "await app.open(...)",
        "await app.queues(...)",
        "await app.work(...)",
        "await assert_enqueued(...)",
        "await metrics.text()",
        "await queue.counts(...)",
        "await queue.get(...)",
        "await ticket.result(...)",
        "await ticket.status(...)",
    )
)


class LoopCall(Generic[T]):
    """A coroutine that an event loop runs for another thread. `future` gets its result or error."""

    def __init__(self, async_form: str, call: Coroutine[Any, Any, T]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.async_form = async_form
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the call on the thread of `loop`, in a copy of this context.

        Raises RuntimeError if the loop is closed.
        """
        self._loop, self.future = loop, concurrent.futures.Future()
        loop.call_soon_threadsafe(self._start_task, self.future)

    def is_done(self, caller: CallerThread | None = None) -> bool:
        """Wait for the end of the call and return True; False if its loop ended before it started the call.

        `caller` runs callbacks of the call during the wait. The wait has steps of CHECK_SECONDS, because a
        signal that arrives just before a long wait would not interrupt it: its handler runs between steps.
        """
        if caller is not None:
            caller.wait(self.future, self._check_loop)
        while not self.future.done():
            try:
                self.future.exception(CHECK_SECONDS)
            except TimeoutError:
                self._check_loop()
            except concurrent.futures.CancelledError:
                break
        return not self.future.cancelled()

    def _check_loop(self) -> None:
        """Cancel the call if its loop has ended without starting it; fail it if its loop was closed later."""
        assert self._loop is not None, "the call was started"  # noqa: S101
        if self._loop.is_running() or self.future.cancel():
            return
        if self._loop.is_closed():
            self._fail(self._ended_error())

    def cancel(self) -> None:
        """Cancel the call on its loop. Any thread may call this."""
        if self.future.cancel():
            # The loop has not started the call and will not start it.
            self._call.close()
        elif self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel_task)

    def _start_task(self, future: concurrent.futures.Future[T]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(future))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, future: concurrent.futures.Future[T]) -> None:
        # Here and not in `_start_task`: a loop that ends may cancel the task before it runs.
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = await self._call
        except asyncio.CancelledError:
            self._fail(self._ended_error())
            raise
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not self.future.done():
                self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _ended_error(self) -> DibsError:
        if self.async_form in _READS:
            return NotRunning(
                f"the event loop where the app was open ended during {self.async_form}; repeat the call"
            )
        return OutcomeUnknown(
            f"the event loop where the app was open ended during {self.async_form}, so the call may or may "
            "not have happened"
        )
