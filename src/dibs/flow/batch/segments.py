"""Segments: the members of a batch, cut into flows of up to 1,000 nodes without edges. Producers: each
event loop of a process that adds members to a batch is one producer of the batch.

A producer reserves a segment in an attribute of the batch job before it enqueues the segment, and then
reads the batch job. The storage orders these changes: if the read shows an open batch, each later read
that shows the batch closed also shows the reservation. So an evaluation never ends a batch before a
valid segment.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from attrs import define, field
from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound
from dibs.client.connection.coalesced_calls import job_size
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
from dibs.flow.builder import Flow
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, encode_plan
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import EnqueueRequest, JobPatch, Reject
from dibs.model.wakeup import EVALUATIONS, FLOW_ATTRIBUTE, FLOWS, wake_up_request

#: The most members of a segment.
MAX_MEMBERS: Final = 1000
#: The most bytes of the payloads and attributes in a segment.
MAX_SEGMENT_BYTES: Final = 512 * 1024
#: A segment is enqueued before it is full if its first member is older than this number of seconds when
#: another one comes.
MAX_AGE: Final = 5.0
#: The number of members after which other tasks of the event loop run.
_PAUSE_EVERY: Final = 200
#: A segment is kept until its batch ends, so that a missing one is known for sure.
KEPT: Final = OutcomeRetention(
    completed=None, failed=None, cancelled=None, keep_payload=("completed", "failed", "cancelled")
)


@define(eq=False)
class SegmentCutter:
    """Cuts the jobs of one `enqueue_many` into segments."""

    _context: FlowContext
    #: The most bytes of a segment.
    _max_bytes: int
    _flow: Flow = field(init=False)
    _members: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    _began: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._clear()

    async def cut(self, jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> AsyncIterator[Plan]:
        """Yield the plan of each segment. Raises Refused for a job that is not allowed, with its index."""
        index = 0
        async for job in _iterate(jobs):
            try:
                size = _size_of(job)
                if self._is_full(size):
                    yield self._take()
                self._add(job, size)
            except Refused as error:
                error.index = index
                raise
            index += 1
        if self._members:
            yield self._take()

    def _is_full(self, size: int) -> bool:
        if not self._members:
            return False
        is_old = asyncio.get_running_loop().time() - self._began >= MAX_AGE
        return self._members >= MAX_MEMBERS or self._bytes + size > self._max_bytes or is_old

    def _add(self, job: Bound[Any], size: int) -> None:
        if not self._members:
            self._began = asyncio.get_running_loop().time()
        self._flow.add(job)
        self._members += 1
        self._bytes += size

    def _take(self) -> Plan:
        plan = self._flow.plan()
        self._clear()
        return plan

    def _clear(self) -> None:
        self._flow = Flow(self._context, None, None, {})
        self._members = self._bytes = 0


async def _iterate(jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> AsyncIterator[Bound[Any]]:
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
        return
    if isinstance(jobs, str | Bound) or not isinstance(jobs, Iterable):
        raise Refused(
            f"jobs is {jobs!r:.80}; pass an iterable, or an async iterable, of task.bind(...)", field="jobs"
        )
    for index, job in enumerate(jobs):
        if index % _PAUSE_EVERY == _PAUSE_EVERY - 1:
            await asyncio.sleep(0)
        yield job


def _size_of(job: object) -> int:
    if not isinstance(job, Bound):
        raise Refused(f"{job!r:.60} is not bound; wrap the call in task.bind(...)", field="jobs")
    return job_size(job.request.job)


def encode_segment(plan: Plan, keep: int | None, limit: int) -> bytes:
    """Return the payload of a segment, of at most `limit` bytes. Raises Refused for a member with more."""
    try:
        return encode_plan(replace(plan, keep=keep, tolerant=True), limit)
    except Refused as error:
        raise Refused(
            f"a member has too many bytes for a batch, which stores a member in a payload of {limit:,} bytes "
            "with its settings; pass shorter arguments, for example keys of stored data",
            field="jobs",
        ) from error


def build_segment(id: str, batch_id: str, payload: bytes) -> EnqueueRequest:
    """Return the request for a segment. A repeat with the same id is safe: it gets the first answer."""
    digest = hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
    return replace(_segment_request(id, batch_id, payload), request_key=f"segment/{digest}")


def build_empty_segment(id: str, batch_id: str) -> EnqueueRequest:
    """Return the request that takes the place of a missing segment.

    If its producer enqueues it later, the storage answers that the id is known, and enqueues no member.
    """
    return _segment_request(id, batch_id, encode_plan(Plan(queues=(), nodes=(), tolerant=True)))


def _segment_request(id: str, batch_id: str, payload: bytes) -> EnqueueRequest:
    attributes = {FLOW_ATTRIBUTE: msgspec.json.encode(batch_id)}
    data = JobData(payload=payload, attributes=attributes, retention=KEPT)
    return EnqueueRequest(job=NewJob(id=id, data=data), on_conflict=Reject(failed=True))


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
