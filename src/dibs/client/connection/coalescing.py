"""Coalescing of single calls: a `Coalescer` sends concurrent calls in batches, one batch at a time.

The calls that arrive while a batch is in flight form the next batch. Calls for ids that an open
transaction locks leave the batches for lanes of their own, and every call has a deadline. A call that
is alone is sent at once, without a task, if the storage can do so (`DirectCalls`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec
from attrs import define, field

from dibs.client.connection.call_limits import CallTimeout
from dibs.client.connection.pending_calls import (
    LOOP_END_SECONDS,
    MAX_BATCH_ITEMS,
    NO_REPLY,
    Answer,
    FlushTask,
    Item,
    Lanes,
    PendingCall,
    expire_waiting,
    fail_calls,
    move_answers,
    take_batch,
    wait_at_loop_end,
)
from dibs.errors import BatchRefused, NotRunning, OutcomeUnknown, Refused, StorageBusy

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


#: Seconds from a deadline to its timer, so that calls which began together end together.
TIMER_SLACK: Final = 0.02
_NOT_SENT: Final = "the event loop ended before this call was sent; repeat the call on a running loop"
#: Errors of one item for which a storage refuses or cannot encode a whole batch. It has written no item.
_OF_ONE_ITEM: Final = (Refused, TypeError, ValueError, OverflowError, RecursionError)
#: Errors of a reply that cannot be decoded. They are ValueErrors, too.
_UNREADABLE_REPLY: Final = (msgspec.DecodeError, UnicodeDecodeError)


def _zero_size(_item: object) -> int:
    return 0


def _never_filling() -> bool:
    return False


@define(eq=False)
class Coalescer(Generic[Item, Answer]):
    """A sender of batches. Items that are added while a batch is in flight form the next batch.

    Check an item before `add`, because one bad item delays its whole batch. `add` returns when the item is
    answered, so a caller cannot send faster than the storage answers. A cancelled or refused call does not
    affect the other calls of its batch, and each call gets a separate exception object.

    One timer serves the deadlines of all calls. A call that was not sent raises StorageBusy at its deadline.
    The batch in flight is cancelled when the deadlines of all its calls have passed.
    """

    _send: Callable[[list[Item]], Awaitable[Sequence[Answer]]]
    #: Returns the size of an item in bytes. The default counts 0, for items that are always small.
    _size: Callable[[Item], int] = field(default=_zero_size)
    #: True if `send` changes no stored state, as for gets.
    _read_only: bool = field(default=False, kw_only=True)
    _timeout: CallTimeout = field(factory=CallTimeout, kw_only=True)
    #: Returns True if more calls will be added in the next iteration of the event loop.
    _is_filling: Callable[[], bool] = field(default=_never_filling, kw_only=True)
    #: The lanes for calls whose batch raised StorageBusy; None if such a batch fails its calls.
    _lanes: Lanes[Item, Answer] | None = field(default=None, kw_only=True)
    #: Sends calls one by one without a task; None if the storage cannot do this.
    _direct: DirectCalls[Item, Answer] | None = field(default=None, kw_only=True)
    _waiting: deque[PendingCall[Item, Answer]] = field(factory=deque, init=False)
    #: The batch in flight, and the latest deadline of its calls.
    _in_flight: Sequence[PendingCall[Item, Answer]] = field(default=(), init=False)
    _in_flight_until: float = field(default=math.inf, init=False)
    _flushing: asyncio.Future[None] | None = field(default=None, init=False)
    #: The task that sends the batch in flight.
    _sender: asyncio.Task[Any] | None = field(default=None, init=False)
    #: `sender.cancelling()` before a deadline cancelled the sender; None if no deadline has cancelled it.
    _cancelling: int | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    #: The new futures of the calls that were in flight when the event loop ended, by their former ones. None
    #: if it did not end.
    _moved_answers: dict[asyncio.Future[Answer], asyncio.Future[Answer]] | None = field(
        default=None, init=False
    )

    def __attrs_post_init__(self) -> None:
        if self._lanes is not None:
            self._lanes.flush = self._flush
        if self._direct is not None:
            self._direct.on_end = self._end_direct

    async def add(self, item: Item, expires: float | None = None) -> Answer:
        """Send the item in the next batch and return its answer. Raises StorageBusy, OutcomeUnknown.

        `expires` is the deadline, on the clock of the event loop. Default: the timeout from now.
        """
        loop = asyncio.get_running_loop()
        if self._timeout.seconds is None:
            expires = math.inf
        else:
            if expires is None:
                expires = loop.time() + self._timeout.seconds
            if self._timer is None:
                self._timer = loop.call_at(expires + TIMER_SLACK, self._on_timer)
        direct = self._direct
        if direct is not None and direct.is_next and (sent := self._send_directly(item, expires, loop)):
            try:
                return await sent
            except asyncio.CancelledError:
                return sent.take_at_loop_end()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(PendingCall(item, self._size(item), answer, expires))
        if self._flushing is None and (direct is None or not direct.is_busy):
            self._start_flush()
        try:
            return await answer
        except asyncio.CancelledError:
            if self._moved_answers is None:
                raise
            return await wait_at_loop_end(self._moved_answers.pop(answer, answer))

    def _send_directly(
        self, item: Item, expires: float, loop: asyncio.AbstractEventLoop
    ) -> DirectAnswer[Answer] | None:
        direct = self._direct
        if direct is None or direct.is_busy or self._flushing is not None or self._is_filling():
            return None
        if self._lanes:
            return None  # calls for the same id may wait in a lane
        return direct.start(item, self._size(item), expires, loop)

    def _end_direct(self, unsent: PendingCall[Item, Answer] | None) -> bool:
        if unsent is not None:
            self._waiting.appendleft(unsent)
        if self._waiting:
            self._start_flush()
        return bool(self._waiting)

    def _start_flush(self) -> None:
        self._moved_answers = None
        self._flushing = self._sender = FlushTask(self._flush_all(), self._move_answers)

    def _move_answers(self) -> None:
        """Give the calls of the batch in flight new futures: the end of the loop cancels their callers."""
        self._moved_answers = move_answers(self._in_flight) if isinstance(self._in_flight, list) else {}

    @property
    def is_idle(self) -> bool:
        """True if no item waits or is in flight."""
        is_busy = self._direct is not None and self._direct.is_busy
        return self._flushing is None and not self._waiting and not self._lanes and not is_busy

    async def drain(self) -> None:
        """Wait until every item added so far is answered. Called before the storage closes."""
        if self._direct is not None:
            await self._direct.drain()
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        if self._lanes is not None:
            await self._lanes.drain()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- batches -------------------------------------------------------------------------------------

    async def _flush_all(self) -> None:
        is_first = True
        try:
            while self._waiting:
                if self._is_filling():
                    await self._wait_until_filled()
                if not (batch := take_batch(self._waiting)):
                    continue
                if self._lanes and not (batch := self._lanes.take(batch)):
                    continue
                self._in_flight, self._in_flight_until = batch, batch[-1].expires
                await self._flush_until_expired(batch)
                if self._direct is not None:
                    self._direct.is_next = is_first and len(batch) == 1 and not self._waiting
                    if self._direct.is_next:
                        return
                is_first = False
                if not self._read_only and not self._waiting:
                    # Let the callers resume before this task ends: one that adds a call again needs no new
                    # task. If the event loop ends first, it cancels this task, and `add` returns the answers.
                    self._in_flight, self._in_flight_until = (), math.inf
                    await asyncio.sleep(0)
        finally:
            self._flushing, self._sender, self._in_flight = None, None, ()
            # Calls are left here only if the event loop is ending. Their callers must not wait for ever.
            fail_calls(self._waiting, NotRunning(_NOT_SENT))
            self._waiting.clear()

    async def _wait_until_filled(self) -> None:
        """Wait for the calls that are starting, until the next batch is full: small batches cost more."""
        self._in_flight, self._in_flight_until = (), math.inf
        while len(self._waiting) < MAX_BATCH_ITEMS and self._is_filling():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)

    async def _flush_until_expired(self, batch: list[PendingCall[Item, Answer]]) -> None:
        try:
            await self._flush(batch)
        except StorageBusy as error:
            if self._lanes is None:
                fail_calls(batch, error)
            else:
                self._lanes.open([call for call in batch if not call.answer.done()], error)
        except asyncio.CancelledError as error:
            if not self._take_expiry():
                fail_calls(batch, OutcomeUnknown(NO_REPLY))
                raise
            fail_calls(batch, self._timeout.cancelled_error(error, read_only=self._read_only))
        except BaseException:
            fail_calls(batch, OutcomeUnknown(NO_REPLY))
            raise
        finally:
            if self._cancelling is not None:
                self._take_expiry()  # the storage answered although it was cancelled

    async def _flush(self, batch: list[PendingCall[Item, Answer]]) -> None:
        """Send a batch and answer its calls. After StorageBusy, no unanswered call is written."""
        try:
            answers = await self._send([call.item for call in batch])
        except StorageBusy:
            raise
        except BatchRefused as error:
            await self._flush_without_refused(batch, error)
        except _UNREADABLE_REPLY as error:
            # The storage has answered, so the batch may be written: sent again, its items would be doubled.
            fail_calls(batch, error)
        except _OF_ONE_ITEM as error:
            await self._flush_one_by_one(batch, error)
        except Exception as error:  # noqa: BLE001 - each caller must get the error
            fail_calls(batch, error)
        else:
            for call, answer in zip(batch, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)

    async def _flush_one_by_one(self, batch: list[PendingCall[Item, Answer]], error: Exception) -> None:
        """Send each item alone, so that the bad item of one caller fails no other call."""
        if len(batch) == 1:
            fail_calls(batch, error)
            return
        for call in batch:
            await self._flush([call])

    async def _flush_without_refused(
        self, batch: list[PendingCall[Item, Answer]], error: BatchRefused
    ) -> None:
        """Fail the calls that `error` refuses, and send the rest again: the storage wrote no item."""
        refused = {e.index: e for e in error.exceptions if isinstance(e, Refused) and e.index is not None}
        rest = [call for index, call in enumerate(batch) if index not in refused]
        if len(rest) == len(batch):
            fail_calls(batch, error)
            return
        for index, item_error in refused.items():
            fail_calls([batch[index]], item_error)
        if rest:
            await self._flush(rest)

    # -- deadlines -----------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        """End the calls whose deadlines have passed, and set the timer for the next deadline."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        nearest = min(
            expire_waiting(
                self._waiting,
                now,
                lambda: self._timeout.unsent_error("the reply to the calls that were sent before it"),
            ),
            self._expire_in_flight(now),
            self._direct.expire(now) if self._direct else math.inf,
            self._lanes.expire(now) if self._lanes else math.inf,
        )
        self._timer = None if nearest == math.inf else loop.call_at(nearest + TIMER_SLACK, self._on_timer)

    def _expire_in_flight(self, now: float) -> float:
        """End the expired calls of the batch in flight. Cancel the batch if all of them have expired."""
        if self._sender is None or self._cancelling is not None:
            return math.inf
        if self._in_flight_until <= now:
            # A storage that has not sent the batch marks the CancelledError with `mark_unsent`.
            self._cancelling = self._sender.cancelling()
            self._sender.cancel()
            return math.inf
        for call in self._in_flight:
            if call.expires > now:
                return call.expires
            if not call.answer.done():
                call.answer.set_exception(self._timeout.cancelled_error(None, read_only=self._read_only))
        return self._in_flight_until

    def _take_expiry(self) -> bool:
        """Return whether the cancellation of this task is that of a deadline, and undo it in the task."""
        before, self._cancelling = self._cancelling, None
        task = asyncio.current_task()
        return before is not None and task is not None and task.uncancel() <= before
