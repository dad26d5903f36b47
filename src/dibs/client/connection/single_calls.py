"""The verbs that single calls share: each is a batch under the surface, one batcher per queue and verb."""

from __future__ import annotations

import asyncio
from functools import partial

from dibs.client.connection.coalescing import Coalescer
from dibs.model.check_jobs import check_request, check_target
from dibs.model.job import NewJob, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.protocol import Storage


class CoalescedCalls:
    """One call, one answer, over the batches of an open storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._enqueues: dict[str, Coalescer[EnqueueRequest, EnqueueResult]] = {}
        self._gets: dict[str, Coalescer[str, Slot]] = {}
        self._settles: dict[str, Coalescer[Settlement, SettleResult]] = {}

    async def enqueue(self, queue: str, request: EnqueueRequest) -> EnqueueResult:
        """Enqueue one request, checked before it joins others. Raises Refused, OutcomeUnknown."""
        check_target(queue, storage_limits(self._storage))
        check_request(request, storage_limits(self._storage))
        batcher = self._enqueues.get(queue)
        if batcher is None:
            batcher = self._enqueues[queue] = Coalescer(partial(self._storage.enqueue, queue), _bytes_asked)
        return await batcher.add(request)

    async def get(self, queue: str, id: str) -> Slot:
        """Return the slot of one id."""
        batcher = self._gets.get(queue)
        if batcher is None:
            batcher = self._gets[queue] = Coalescer(partial(self._storage.get, queue), reads=True)
        return await batcher.add(id)

    async def settle(self, queue: str, settlement: Settlement) -> SettleResult:
        """Settle one run."""
        batcher = self._settles.get(queue)
        if batcher is None:
            batcher = self._settles[queue] = Coalescer(partial(self._storage.settle, queue), _bytes_settled)
        return await batcher.add(settlement)

    async def drain(self) -> None:
        """Return when everything under way has been answered."""
        drains = [batcher.drain() for batcher in self._enqueues.values()]
        drains += [batcher.drain() for batcher in self._gets.values()]
        drains += [batcher.drain() for batcher in self._settles.values()]
        await asyncio.gather(*drains)


def storage_limits(storage: Storage) -> Limits:
    """Return a storage's own limits, where it was opened with others than the contract's."""
    limits = getattr(storage, "limits", LIMITS)
    return limits if isinstance(limits, Limits) else LIMITS


def job_size(job: NewJob) -> int:
    """Return the bytes of a job that count in a batch."""
    data = job.data
    return len(data.payload) + (sum(map(len, data.attributes.values())) if data.attributes else 0)


def _bytes_asked(request: EnqueueRequest) -> int:
    return job_size(request.job)


def _bytes_settled(settlement: Settlement) -> int:
    how = settlement.how
    return len(how.result) if isinstance(how, Complete) and how.result else 0
