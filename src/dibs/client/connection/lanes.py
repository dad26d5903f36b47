"""Lanes for calls whose ids an open transaction locks, so that calls for other ids can continue.

A storage with limited waits for locks raises StorageBusy for a batch with a locked id, and does not write the
batch. It cannot name the id. So each id of such a batch gets a lane. The lanes are sent in ever smaller
batches, until those with a locked id have only this id; they are tried again until they succeed or expire.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Final, Generic

from attrs import define, field

from dibs.client.connection.call_timeout import LOCK_WAIT, CallTimeout
from dibs.client.connection.pending_calls import (
    Answer,
    Item,
    PendingCall,
    expire_waiting,
    fail_calls,
    take_batch,
)
from dibs.errors import NotRunning, OutcomeUnknown, StorageBusy

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
