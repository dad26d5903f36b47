"""Calls that their callers send without a task: the fast path of a coalescer for calls one by one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from attrs import define, field

from dibs.client.connection.call_timeout import CallTimeout
from dibs.client.connection.flush_task import LOOP_END_SECONDS, NO_REPLY
from dibs.client.connection.pending_calls import Answer, Item, PendingCall
from dibs.errors import OutcomeUnknown

T = TypeVar("T")

#: The answer to a sent item as a sequence, its error, or None if the storage surely did not apply it.
DirectResult = Sequence[Answer] | Exception | None
#: Sends an item now, and later calls the function with its result. Returns False, and sends nothing, if this
#: takes more than a write to an open connection.
StartItem = Callable[[Item, Callable[[DirectResult[Answer]], None]], bool]


class DirectAnswer(asyncio.Future[T], Generic[T]):
    """The future of a call whose request was sent. Its caller gets the answer also if the event loop ends.

    asyncio.run and other runners cancel all tasks after they have stopped the loop, and then run the loop
    until these tasks end. Such a cancellation of the caller takes effect when the answer arrives, or after
    LOOP_END_SECONDS. A cancellation on the running loop takes effect at once.
    """

    #: True after the end of the loop has cancelled the caller. An attribute of the class until then, because
    #: an `__init__` here takes as long as that of Future.
    is_loop_ending: bool = False

    def cancel(self, msg: Any | None = None) -> bool:
        loop = self.get_loop()
        if self.done() or loop.is_running() or loop.is_closed() or self.is_loop_ending:
            return super().cancel(msg)
        self.is_loop_ending = True
        loop.call_later(LOOP_END_SECONDS, self._give_up)
        # After False the task of the caller raises CancelledError when this future is done.
        return False

    def _give_up(self) -> None:
        if not self.done():
            self.set_exception(OutcomeUnknown(NO_REPLY))

    def take_at_loop_end(self) -> T:
        """Return the answer after a CancelledError in the caller, whose task is cancelled at its next await.

        Raises the error of the call, and CancelledError unless the loop is ending.
        """
        if not self.is_loop_ending:
            raise asyncio.CancelledError
        if (task := asyncio.current_task()) is not None:
            task.cancel()
        return self.result()


@define(eq=False)
class DirectCalls(Generic[Item, Answer]):
    """The direct calls of one coalescer, one at a time.

    A call takes no task, and one iteration of the event loop less than a batch. `is_next` is True after a
    call that met no other call: concurrent calls share a batch, which takes fewer requests.
    """

    _start: StartItem[Item, Answer]
    _timeout: CallTimeout
    #: True if the next call may be sent directly.
    is_next: bool = field(default=False, init=False)
    #: Called when no call is in flight any more, with the call that the storage did not apply, or None. It
    #: returns True if other calls wait for a batch. Set by the coalescer.
    on_end: Callable[[PendingCall[Item, Answer] | None], bool] = field(init=False)
    _in_flight: PendingCall[Item, Answer] | None = field(default=None, init=False)
    #: Done when no call is in flight. Set by `drain`.
    _ended: asyncio.Future[None] | None = field(default=None, init=False)

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None

    def start(
        self, item: Item, size: int, expires: float, loop: asyncio.AbstractEventLoop
    ) -> DirectAnswer[Answer] | None:
        """Send a call and return its future; None if it was not sent. No call may be in flight."""
        answer: DirectAnswer[Answer] = DirectAnswer(loop=loop)
        call = PendingCall(item, size, answer, expires)
        if not self._start(item, partial(self._receive, call)):
            return None
        self._in_flight = call
        return answer

    def _receive(self, call: PendingCall[Item, Answer], result: DirectResult[Answer]) -> None:
        if self._in_flight is not call:
            return  # its deadline has passed
        unsent = None
        if call.answer.done():
            pass  # its caller was cancelled
        elif result is None:
            unsent = call._replace(answer=_forwarded_to(call.answer))
        elif isinstance(result, Exception):
            call.answer.set_exception(result)
        else:
            call.answer.set_result(result[0])
        self._end(unsent)

    def _end(self, unsent: PendingCall[Item, Answer] | None) -> None:
        self._in_flight = None
        self.is_next = not self.on_end(unsent)
        if self._ended is not None:
            self._ended.set_result(None)
            self._ended = None

    def expire(self, now: float) -> float:
        """End the call in flight if its deadline has passed. Return its deadline, or `inf`."""
        call = self._in_flight
        if call is None or call.expires > now:
            return math.inf if call is None else call.expires
        if not call.answer.done():
            call.answer.set_exception(self._timeout.unanswered_error())
        self._end(None)
        self.is_next = False
        return math.inf

    async def drain(self) -> None:
        """Wait until no call is in flight."""
        if self._in_flight is not None:
            self._ended = self._ended or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)


def _forwarded_to(target: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future whose result or error the target gets, too."""
    source: asyncio.Future[T] = target.get_loop().create_future()

    def forward(source: asyncio.Future[T]) -> None:
        if target.done() or source.cancelled():
            return
        if (error := source.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    source.add_done_callback(forward)
    return source
