"""The verbs of one item that coalesce concurrent calls: enqueue, get and settle.

`CoalescedCalls` keeps one `Coalescer` per queue and verb.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from attrs import define, field

from dibs.client.connection.coalescing import Coalescer
from dibs.model.check_jobs import check_enqueue_queue, check_request
from dibs.model.job import NewJob, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.protocol import Storage

#: Number of coalescers of one verb at which the idle ones are removed. Each takes about 800 bytes.
MAX_COALESCERS: Final = 1000


@define(eq=False)
class CoalescedCalls:
    """The verbs of an open storage that take one item per call and coalesce concurrent calls."""

    _storage: Storage
    #: One coalescer per queue name, for each verb.
    _enqueues: dict[str, Coalescer[EnqueueRequest, EnqueueResult]] = field(factory=dict, init=False)
    _gets: dict[str, Coalescer[str, Slot]] = field(factory=dict, init=False)
    _settles: dict[str, Coalescer[Settlement, SettleResult]] = field(factory=dict, init=False)

    async def enqueue(self, queue: str, request: EnqueueRequest) -> EnqueueResult:
        """Check one request and enqueue it. Raises Refused, OutcomeUnknown, StorageError."""
        check_enqueue_queue(queue, storage_limits(self._storage))
        check_request(request, storage_limits(self._storage))
        coalescer = self._enqueues.get(queue)
        if coalescer is None:
            _drop_idle(self._enqueues)
            coalescer = self._enqueues[queue] = Coalescer(
                partial(self._storage.enqueue, queue), _request_size
            )
        return await coalescer.add(request)

    async def get(self, queue: str, id: str) -> Slot:
        """Return everything stored for one id: current job, blocked successor and outcome."""
        coalescer = self._gets.get(queue)
        if coalescer is None:
            _drop_idle(self._gets)
            coalescer = self._gets[queue] = Coalescer(partial(self._storage.get, queue), read_only=True)
        return await coalescer.add(id)

    async def settle(self, queue: str, settlement: Settlement) -> SettleResult:
        """Store how one run ended: completed, failed, retried, ... Raises OutcomeUnknown, StorageError."""
        coalescer = self._settles.get(queue)
        if coalescer is None:
            _drop_idle(self._settles)
            coalescer = self._settles[queue] = Coalescer(
                partial(self._storage.settle, queue), _settlement_size
            )
        return await coalescer.add(settlement)

    async def drain(self) -> None:
        """Wait until all calls are answered. Called before the storage closes."""
        drains = [coalescer.drain() for coalescer in self._enqueues.values()]
        drains += [coalescer.drain() for coalescer in self._gets.values()]
        drains += [coalescer.drain() for coalescer in self._settles.values()]
        await asyncio.gather(*drains)


def _drop_idle(coalescers: dict[str, Coalescer[Any, Any]]) -> None:
    """Remove the idle coalescers if there are MAX_COALESCERS, so that a name used once costs no memory."""
    if len(coalescers) >= MAX_COALESCERS:
        for queue in [queue for queue, coalescer in coalescers.items() if coalescer.is_idle]:
            del coalescers[queue]


def storage_limits(storage: Storage) -> Limits:
    """Return the limits that the storage was opened with, or the limits of the contract."""
    limits = getattr(storage, "limits", LIMITS)
    return limits if isinstance(limits, Limits) else LIMITS


def job_size(job: NewJob) -> int:
    """Return the bytes that a job adds to a batch: payload and attributes."""
    data = job.data
    return len(data.payload) + (sum(map(len, data.attributes.values())) if data.attributes else 0)


def _request_size(request: EnqueueRequest) -> int:
    return job_size(request.job)


def _settlement_size(settlement: Settlement) -> int:
    action = settlement.action
    return len(action.result) if isinstance(action, Complete) and action.result else 0
