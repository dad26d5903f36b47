"""Segments: the members of a batch, cut into flows of up to 1,000 nodes without edges."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

import msgspec
from attrs import define, field
from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound
from dibs.client.connection.coalesced_calls import job_size
from dibs.errors import Refused
from dibs.flow.builder import Flow
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, encode_plan
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import EnqueueRequest, Reject
from dibs.model.wakeup import FLOW_ATTRIBUTE

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
