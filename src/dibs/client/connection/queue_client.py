"""One queue's way to the storage: what queue, task, ticket and claim have in common."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from dibs.client.calls.bound_job import Bound
from dibs.client.connection.coalescing import MOST_BYTES, MOST_ITEMS, job_size, storage_limits
from dibs.client.connection.storage_handle import OpenStorage, StorageHandle
from dibs.client.connection.transactions import TransactionCalls, in_transaction
from dibs.client.options.serde import Serde
from dibs.errors import BatchRefused, DibsError, Refused
from dibs.model.check_jobs import CheckedBatch, check_request, check_target
from dibs.model.job import OutcomeRetention, Slot
from dibs.model.limits import Limits
from dibs.model.requests import EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.protocol import Storage

#: For how long, in seconds, a queue's own retention is believed: it changes rarely, waits are many.
RETENTION_CACHE_SECONDS = 60.0


class EnqueuedBatch(NamedTuple):
    """What came of a batch of any size: under each id, its answer."""

    ids: list[str]
    answers: list[EnqueueResult]


class QueueClient:
    """A queue by name, with its serde, at the place where the app's storage is open."""

    def __init__(self, storage_handle: StorageHandle, name: str, serde: Serde) -> None:
        self.storage_handle = storage_handle
        self.name = name
        self.serde = serde
        self._retention = OutcomeRetention()
        self._asked: Storage | None = None
        self._believed_until = 0.0

    @property
    def label(self) -> str:
        """The name and the storage of the queue for `repr`, without a password: "'mail' of file:./jobs"."""
        return f"{self.name!r} of {self.storage_handle.redacted_url}"

    async def storage(self) -> Storage:
        """Return the storage, opening it at first use."""
        return (await self.storage_handle.ensure_open()).storage

    async def enqueue(self, request: EnqueueRequest, connection: Any = None) -> EnqueueResult:
        """Enqueue one request along with whatever else is on its way, or alone on the caller's connection."""
        opened = await self.storage_handle.ensure_open()
        if self.storage_handle.enqueue_middleware is None:
            return await self._one(opened, request, connection)
        async with self.storage_handle.enqueue_middleware(self.name, [request]) as (sent,):
            return await self._one(opened, sent, connection)

    async def _one(self, opened: OpenStorage, request: EnqueueRequest, connection: Any) -> EnqueueResult:
        if connection is None:
            return await opened.coalesced.enqueue(self.name, request)
        check_target(self.name, storage_limits(opened.storage))
        check_request(request, storage_limits(opened.storage))
        (answer,) = await (await in_transaction(opened.storage, connection)).enqueue(self.name, [request])
        return answer

    async def settle(self, settlement: Settlement, connection: Any = None) -> SettleResult:
        """Settle one run along with whatever else is on its way, or alone on the caller's connection."""
        opened = await self.storage_handle.ensure_open()
        if connection is None:
            return await opened.coalesced.settle(self.name, settlement)
        (answer,) = await (await in_transaction(opened.storage, connection)).settle(self.name, [settlement])
        return answer

    async def get(self, id: str) -> Slot:
        """Return the slot of one id."""
        return await (await self.storage_handle.ensure_open()).coalesced.get(self.name, id)

    async def enqueue_all(self, jobs: Iterable[Bound], connection: Any = None) -> EnqueuedBatch:
        """Enqueue any number of jobs in batches, once all are found good. Raises BatchRefused before."""
        storage = await self.storage()
        check_target(self.name, storage_limits(storage))
        requests = check_jobs(jobs, self.name, storage_limits(storage))
        place = storage if connection is None else await in_transaction(storage, connection)
        ids = [request.job.id for request in requests]
        if self.storage_handle.enqueue_middleware is None:
            return EnqueuedBatch(ids, await self._in_batches(place, requests))
        async with self.storage_handle.enqueue_middleware(self.name, requests) as sent:
            return EnqueuedBatch(ids, await self._in_batches(place, sent))

    async def _in_batches(
        self, place: Storage | TransactionCalls, requests: Sequence[EnqueueRequest]
    ) -> list[EnqueueResult]:
        answers: list[EnqueueResult] = []
        for chunk in split_batches(requests):
            try:
                answers += await place.enqueue(self.name, chunk)
            except DibsError as error:
                error.add_note(f"the first {len(answers)} of {len(requests)} jobs were enqueued before")
                raise
        return answers

    async def retention(self) -> OutcomeRetention:
        """Return what the queue is set to keep, as of at most a minute ago."""
        storage = await self.storage()
        if storage is not self._asked or time.monotonic() >= self._believed_until:
            known = {info.name: info.settings for info in await storage.queues()}
            self._asked = storage
            self._retention = known[self.name].retention if self.name in known else OutcomeRetention()
            self._believed_until = time.monotonic() + RETENTION_CACHE_SECONDS
        return self._retention


def check_jobs(jobs: Iterable[Bound], queue: str, limits: Limits) -> CheckedBatch:
    """Return the requests of all jobs. Raises BatchRefused naming each that is at fault by its place."""
    requests: list[EnqueueRequest] = []
    refused: list[Refused] = []
    plain = True
    for index, bound in enumerate(jobs):
        try:
            request = bound.request
            if bound.queue != queue:
                _refuse(bound, queue)
            plain = check_request(request, limits) and plain
        except Refused as error:
            error.index = index
            refused.append(error)
        else:
            requests.append(request)
    if refused:
        total = len(requests) + len(refused)
        raise BatchRefused(f"{len(refused)} of {total} jobs are refused, none was sent", refused)
    return CheckedBatch.found(requests, limits, plain=plain)


def _refuse(bound: Bound, queue: str) -> NoReturn:
    raise Refused(f"this job is bound to {bound.queue!r}; enqueue it there, not in {queue!r}", field="queue")


def split_batches(requests: Sequence[EnqueueRequest]) -> Iterator[Sequence[EnqueueRequest]]:
    """Cut requests into batches that are neither too many nor too heavy; what was checked counts as such."""
    begin, room = 0, MOST_BYTES
    for place, request in enumerate(requests):
        size = job_size(request.job)
        room -= size
        if place > begin and (place - begin == MOST_ITEMS or room < 0):
            yield _part(requests, begin, place)
            begin, room = place, MOST_BYTES - size
    if requests:
        yield _part(requests, begin, len(requests))


def _part(requests: Sequence[EnqueueRequest], begin: int, end: int) -> Sequence[EnqueueRequest]:
    part = requests[begin:end]
    if isinstance(requests, CheckedBatch):
        return CheckedBatch.found(part, requests.within, plain=requests.plain)
    return part


def split_ids(ids: Iterable[str]) -> Iterator[Sequence[str]]:
    """Cut ids into batches."""
    if isinstance(ids, str):
        # Text is an iterable of letters, and each letter may be an id.
        raise Refused(f"ids is the text {ids!r}; pass a list of ids", field="ids")
    rest = iter(ids)
    while part := tuple(islice(rest, MOST_ITEMS)):
        yield part
