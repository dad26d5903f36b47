"""Calls that wait for their batch or for its answer: their batches, deadlines and errors, the task that
sends the batches of a coalescer, and lanes.

Lanes are for calls whose ids an open transaction locks, so that calls for other ids can continue. A
storage with limited waits for locks raises StorageBusy for a batch with a locked id, and does not
write the batch. It cannot name the id. So each id of such a batch gets a lane. The lanes are sent in
ever smaller batches, until those with a locked id have only this id; they are tried again until they
succeed or expire.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from typing import Any, Final, Generic, NamedTuple, TypeVar

from attrs import define, field

from dibs.client.connection.call_limits import LOCK_WAIT, CallTimeout
from dibs.errors import NotRunning, OutcomeUnknown, StorageBusy

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: Most items of a batch: a storage accepts no more in one call (contract 3, enqueue).
MAX_BATCH_ITEMS: Final = 1000
#: Most bytes of a batch, so that a round trip stays short.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024


class PendingCall(NamedTuple, Generic[Item, Answer]):
    """A call whose item waits for the next batch, or is in flight and waits for its answer."""

    item: Item
    #: Bytes that the item adds to a batch.
    size: int
    answer: asyncio.Future[Answer]
    #: The deadline of the call, on the clock of the event loop; `inf` if it has none.
    expires: float = math.inf


def take_batch(waiting: deque[PendingCall[Item, Answer]]) -> list[PendingCall[Item, Answer]]:
    """Remove and return the next batch within the limits; drop calls whose callers were cancelled."""
    batch: list[PendingCall[Item, Answer]] = []
    bytes_left = MAX_BATCH_BYTES
    while waiting and len(batch) < MAX_BATCH_ITEMS:
        if waiting[0].answer.done():
            waiting.popleft()
            continue
        bytes_left -= waiting[0].size
        if batch and bytes_left < 0:
            break
        batch.append(waiting.popleft())
    return batch


def expire_waiting(
    waiting: deque[PendingCall[Item, Answer]], now: float, make_error: Callable[[], Exception]
) -> float:
    """Remove the calls whose deadlines have passed, and raise an error in each of them.

    The calls are in the order of their deadlines. Return the next deadline, or `inf`. At most MAX_BATCH_ITEMS
    calls are removed, so that the event loop is not stalled; the next deadline is then in the past.
    """
    for _ in range(MAX_BATCH_ITEMS):
        if not waiting or waiting[0].expires > now:
            break
        call = waiting.popleft()
        if not call.answer.done():
            call.answer.set_exception(make_error())
    return waiting[0].expires if waiting else math.inf


def move_answers(
    batch: list[PendingCall[Item, Answer]],
) -> dict[asyncio.Future[Answer], asyncio.Future[Answer]]:
    """Replace the futures in a batch by new ones, and return the new ones by the former ones."""
    moved = {}
    for index, call in enumerate(batch):
        if not call.answer.done() or call.answer.cancelled():
            moved[call.answer] = call.answer.get_loop().create_future()
            batch[index] = call._replace(answer=moved[call.answer])
    return moved


def fail_calls(batch: Iterable[PendingCall[Item, Answer]], error: Exception) -> None:
    """Raise the error in each of the calls that is not answered yet."""
    for call in batch:
        if not call.answer.done():
            # Raising changes an exception (its traceback and context), so callers must not share one.
            call.answer.set_exception(copy_error(error))


def copy_error(error: Exception) -> Exception:
    """Return a copy of an error for one of several callers, with the error as its cause."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - copying fails for a class whose __init__ does not accept its `args`
        copied = OutcomeUnknown(f"{type(error).__name__}: {error}")
    copied.__cause__ = error.__cause__ or error
    return copied


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


#: Seconds between two attempts for an id that is locked.
PAUSE: Final = 0.02
_ENDED: Final = "the event loop ended while this call waited for a lock; read the state of the job"


@define(eq=False)
class Lane(Generic[Item, Answer]):
    """The calls for one id, in their order."""

    waiting: deque[PendingCall[Item, Answer]] = field(factory=deque)
    #: True after an attempt for this id alone met a lock. Only its first call is sent until it succeeds.
    locked: bool = False


@define(eq=False)
class Lanes(Generic[Item, Answer]):
    """The lanes of one coalescer. `bool(lanes)` is True while an id has a lane."""

    #: Returns the id of an item. Calls for the same id are sent in their order.
    _id_of: Callable[[Item], str]
    _timeout: CallTimeout
    #: Limits the concurrent attempts, because each takes a connection of the storage.
    _attempts: asyncio.Semaphore
    #: Sends a batch and answers its calls. After StorageBusy, the batch is not written. Set by the coalescer.
    flush: Callable[[list[PendingCall[Item, Answer]]], Awaitable[None]] = field(init=False)
    _lanes: dict[str, Lane[Item, Answer]] = field(factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)
    #: `waits_for` of the latest StorageBusy.
    _waits_for: str = field(default="", init=False)

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def take(self, batch: list[PendingCall[Item, Answer]]) -> list[PendingCall[Item, Answer]]:
        """Add each call whose id has a lane to that lane. Return the calls for ids without a lane."""
        others = []
        for call in batch:
            if lane := self._lanes.get(self._id_of(call.item)):
                lane.waiting.append(call)
            else:
                others.append(call)
        return others

    def open(self, calls: Sequence[PendingCall[Item, Answer]], error: StorageBusy) -> None:
        """Give each id of a batch that raised `error` a lane, and begin to send them."""
        self._waits_for = error.waits_for
        ids = []
        for call in calls:
            id = self._id_of(call.item)
            lane = self._lanes.get(id)
            if lane is None:
                lane = self._lanes[id] = Lane()
                ids.append(id)
            lane.waiting.append(call)
        self._send_in_parts(ids)

    def expire(self, now: float) -> float:
        """End the calls in lanes whose deadlines have passed. Return the next deadline, or `inf`."""
        return min((self._expire_lane(lane, now) for lane in self._lanes.values()), default=math.inf)

    def _expire_lane(self, lane: Lane[Item, Answer], now: float) -> float:
        return expire_waiting(
            lane.waiting, now, lambda: self._timeout.unsent_error(self._waits_for or "a lock on its id")
        )

    async def drain(self) -> None:
        """Wait until all lanes are closed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- attempts ------------------------------------------------------------------------------------

    def _send_in_parts(self, ids: list[str]) -> None:
        size = math.isqrt(len(ids))
        for begin in range(0, len(ids), max(1, size)):
            part = ids[begin : begin + max(1, size)]
            # An empty context, because the lanes belong to several callers.
            task = asyncio.create_task(self._send_part(part), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_part(self, ids: list[str]) -> None:
        """Send the calls of some lanes until all are answered, or divide the lanes if one has a locked id."""
        try:
            while ids := [id for id in ids if self._keeps_open(id)]:
                if await self._attempt(ids):
                    continue
                if len(ids) > 1:
                    self._send_in_parts(ids)
                    return
                self._lanes[ids[0]].locked = True
                await asyncio.sleep(PAUSE)
        except BaseException:
            for lane in (self._lanes.pop(id, None) for id in ids):
                fail_calls(lane.waiting if lane else (), NotRunning(_ENDED))
            raise

    def _keeps_open(self, id: str) -> bool:
        """Return whether a lane has calls; else remove it."""
        if any(not call.answer.done() for call in self._lanes[id].waiting):
            return True
        del self._lanes[id]
        return False

    async def _attempt(self, ids: list[str]) -> bool:
        """Send one batch with calls of each lane. Return False if the storage raised StorageBusy."""
        async with self._attempts:
            lanes = [self._lanes[id] for id in ids]
            batches = [self._take(lane, one=lane.locked or len(ids) > 1) for lane in lanes]
            batch = [call for calls in batches for call in calls]
            if not batch:
                return True
            try:
                await self._flush_until_deadline(batch)
            except StorageBusy as error:
                self._waits_for = error.waits_for or str(error)
                now = asyncio.get_running_loop().time()
                for lane, calls in zip(lanes, batches, strict=True):
                    lane.waiting.extendleft(reversed(calls))
                    self._expire_lane(lane, now)
                return False
        for lane in lanes:
            lane.locked = False
        return True

    @staticmethod
    def _take(lane: Lane[Item, Answer], *, one: bool) -> list[PendingCall[Item, Answer]]:
        batch = take_batch(lane.waiting)
        if one:
            lane.waiting.extendleft(reversed(batch[1:]))
            return batch[:1]
        return batch

    async def _flush_until_deadline(self, batch: list[PendingCall[Item, Answer]]) -> None:
        latest = max((call.expires for call in batch), default=math.inf)
        limit: Any = asyncio.timeout_at(None if latest == math.inf else latest + 2 * LOCK_WAIT)
        try:
            async with limit:
                await self.flush(batch)
        except TimeoutError as error:
            if not limit.expired():
                raise
            fail_calls(batch, self._timeout.cancelled_error(error.__cause__, read_only=False))
        except StorageBusy:
            raise
        except BaseException:
            fail_calls(batch, OutcomeUnknown(_ENDED))
            raise
