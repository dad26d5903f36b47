"""Producers: each event loop of a process that adds members to a batch is one producer of the batch.

A producer reserves a segment in an attribute of the batch job before it enqueues the segment, and then reads
the batch job. The storage orders these changes: if the read shows an open batch, each later read that shows
the batch closed also shows the reservation. So an evaluation never ends a batch before a valid segment.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from attrs import define, field

from dibs.client.connection.open_storage import OpenStorage
from dibs.errors import BatchClosed, DibsError, OutcomeUnknown, Refused
from dibs.flow.batch.plan import (
    PRODUCER_PREFIX,
    Reserved,
    decode_batch_plan,
    find_reservations,
    is_batch,
    is_open_for,
    segment_id,
)
from dibs.flow.batch.segments import build_segment, encode_segment
from dibs.flow.plan import Plan
from dibs.model.requests import JobPatch
from dibs.model.wakeup import EVALUATIONS, FLOWS, wake_up_request

T = TypeVar("T")
#: Seconds before each repeat of a call whose reply was lost.
_REPEATS: Final = (0.1, 0.5, 2.0)
#: The most producers that an event loop keeps.
_MAX_PRODUCERS: Final = 1000


class AnotherBatch(Exception):
    """The id belongs to another batch than before, or to none."""


@define(eq=False)
class Producer:
    """Adds segments to one batch."""

    _opened: OpenStorage
    _batch_id: str
    #: The first revision of the batch job.
    stamp: int
    #: Ms for which the outcomes of members are kept.
    _keep: int | None
    #: 40 random bits. The attributes of a batch have room for some 1,400 producers.
    id: str = field(factory=lambda: os.urandom(5).hex(), init=False)
    _reserved: Reserved = field(factory=Reserved, init=False)
    _lock: asyncio.Lock = field(factory=asyncio.Lock, init=False)

    async def add(self, plan: Plan, *, member: bool) -> None:
        """Enqueue a segment. `member` is True if a running member of the batch adds it.

        Raises BatchClosed; AnotherBatch if the batch job has ended; Refused. Then no member was enqueued.
        Raises OutcomeUnknown, StorageError.
        """
        payload = encode_segment(plan, self._keep, self._opened.limits.payload)
        number = await self._reserve(len(plan.nodes), member=member)
        request = build_segment(self._segment_id(number), self._batch_id, payload)
        try:
            (answer,) = await _repeat(lambda: self._opened.bounded.enqueue(FLOWS, [request]))
        except OutcomeUnknown:
            raise
        except DibsError:
            await self._take_back(number, len(plan.nodes))
            raise
        if answer.status != "queued":  # an empty segment has taken its place, or the batch has ended
            raise BatchClosed(_closed_message(self._batch_id))

    async def _reserve(self, members: int, *, member: bool) -> int:
        """Reserve the next segment, and return its number. Raises BatchClosed, AnotherBatch, Refused."""
        async with self._lock:
            before = self._reserved
            await self._store(Reserved(before.segments + 1, before.members + members))
            try:
                await self._check_open(member=member)
            except (BatchClosed, AnotherBatch):
                await self._store(before)
                await self._opened.bounded.enqueue(EVALUATIONS, [wake_up_request(self._batch_id)])
                raise
            except BaseException:
                self._reserved = before  # the next call stores its own reservation under this number
                raise
            return before.segments

    async def _check_open(self, *, member: bool) -> None:
        (slot,) = await _repeat(lambda: self._opened.bounded.get(FLOWS, [self._batch_id]))
        if slot.current is None or slot.current.first != self.stamp:
            raise AnotherBatch
        if not is_open_for(slot.current.data.attributes, member=member):
            raise BatchClosed(_closed_message(self._batch_id))

    async def _take_back(self, number: int, members: int) -> None:
        """Take a reservation back after a refused enqueue, unless a later one was made."""
        async with self._lock:
            if self._reserved.segments == number + 1:
                with suppress(DibsError):  # the batch then counts the segment as missing
                    await self._store(Reserved(number, self._reserved.members - members))

    async def _store(self, reserved: Reserved) -> None:
        patch = JobPatch(attributes={PRODUCER_PREFIX + self.id: msgspec.json.encode(reserved)})
        answer = await _repeat(lambda: self._opened.bounded.amend(FLOWS, self._batch_id, patch))
        if answer == "not_found":
            raise AnotherBatch
        self._reserved = reserved

    def _segment_id(self, number: int) -> str:
        return segment_id(self._batch_id, self.stamp, self.id, number)


def _closed_message(batch_id: str) -> str:
    return (
        f"the batch {batch_id!r} is closed, so these members were not enqueued; add members before the end "
        "of `async with`, or from handlers of members"
    )


async def _repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of a call that may be repeated. Repeat it if its reply was lost."""
    for seconds in _REPEATS:
        try:
            return await call()
        except OutcomeUnknown:
            await asyncio.sleep(seconds)
    return await call()


def _check_room(batch_id: str, attributes: Mapping[str, bytes], limit: int) -> None:
    """Raise Refused for a new producer if the attributes of the batch job have half of their limit.

    The other half is for the growing numbers of the producers, and for the close of the batch.
    """
    if sum(len(name) + len(value) for name, value in attributes.items()) > limit // 2:
        producers = len(find_reservations(attributes))
        raise Refused(
            f"the batch {batch_id!r} has {producers:,} producers, which is the limit; "
            "add the members from fewer processes and event loops",
            field="jobs",
        )


class Producers:
    """The producers of the event loops of this process."""

    def __init__(self) -> None:
        self._by_storage: WeakKeyDictionary[OpenStorage, OrderedDict[str, Producer]] = WeakKeyDictionary()

    async def get(self, opened: OpenStorage, batch_id: str, *, fresh: bool = False) -> Producer:
        """Return the producer of this event loop for a batch; if `fresh`, for the batch that has the id now.

        Raises BatchClosed if the batch is unknown or has ended, Refused if it has too many producers.
        """
        known = self._by_storage.setdefault(opened, OrderedDict())
        if batch_id in known and not fresh:
            known.move_to_end(batch_id)
            return known[batch_id]
        (slot,) = await opened.bounded.get(FLOWS, [batch_id])
        job = slot.current
        if job is None or not is_batch(job.data.attributes):
            raise BatchClosed(
                f"no batch with the id {batch_id!r} is open: it has ended or was never enqueued; enqueue it "
                "with `async with app.batch(id=...)`"
            )
        _check_room(batch_id, job.data.attributes, opened.limits.attributes)
        return self.put(opened, batch_id, job.first, decode_batch_plan(job.data.payload).keep)

    def put(self, opened: OpenStorage, batch_id: str, stamp: int, keep: int | None) -> Producer:
        """Return the producer for a batch that is known to be live."""
        known = self._by_storage.setdefault(opened, OrderedDict())
        producer = known.get(batch_id)
        if producer is None or producer.stamp != stamp:
            producer = known[batch_id] = Producer(opened, batch_id, stamp, keep)
        known.move_to_end(batch_id)
        if len(known) > _MAX_PRODUCERS:
            known.popitem(last=False)
        return producer


PRODUCERS: Final = Producers()
