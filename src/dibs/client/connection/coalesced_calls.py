"""The verbs of one item that coalesce concurrent calls: enqueue, get and settle, and the reads of the
retention of queues.

`CoalescedCalls` keeps one `Coalescer` per queue and verb.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from attrs import define, field

from dibs.client.connection.call_limits import LOCK_WAIT, MAX_ATTEMPTS, CallTimeout, with_lock_waits
from dibs.client.connection.coalescing import Coalescer, DirectCalls
from dibs.client.connection.pending_calls import Lanes
from dibs.model.check_jobs import CheckedBatch, check_enqueue_queue, check_request
from dibs.model.job import NewJob, OutcomeRetention, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.abilities import DirectEnqueue, OnEnd, ability
from dibs.storage.protocol import Storage

#: Number of coalescers of one verb at which the idle ones are removed. Each takes about 800 bytes.
MAX_COALESCERS: Final = 1000


def _never_starting(_queue: str) -> bool:
    return False


class CheckedRequest(NamedTuple):
    """A request that has passed `check_request`, and whether it sets only id and payload."""

    request: EnqueueRequest
    plain: bool


@define(eq=False)
class CoalescedCalls:
    """The verbs of an open storage that take one item per call and coalesce concurrent calls."""

    _storage: Storage
    #: Seconds until a call without an answer ends with StorageBusy or OutcomeUnknown; None for no limit.
    _seconds: float | None = field(default=None)
    #: Returns True if enqueues to a queue will start in the next iteration of the event loop.
    _is_starting: Callable[[str], bool] = field(default=_never_starting)
    #: Limits the attempts for locked ids, over all queues.
    _attempts: asyncio.Semaphore = field(init=False)
    _limits: Limits = field(init=False)
    #: One coalescer per queue name, for each verb.
    _enqueues: dict[str, Coalescer[CheckedRequest, EnqueueResult]] = field(factory=dict, init=False)
    _gets: dict[str, Coalescer[str, Slot]] = field(factory=dict, init=False)
    _settles: dict[str, Coalescer[Settlement, SettleResult]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._attempts = asyncio.Semaphore(MAX_ATTEMPTS)
        self._limits = storage_limits(self._storage)

    def _timeout(self, label: str) -> CallTimeout:
        return CallTimeout(self._seconds, label, self._storage.url)

    def _lanes(
        self, limited: Storage | None, id_of: Callable[[Any], str], timeout: CallTimeout
    ) -> Lanes[Any, Any] | None:
        return None if limited is None else Lanes(id_of, timeout, self._attempts)

    def enqueue(
        self, queue: str, request: EnqueueRequest, expires: float | None = None
    ) -> Coroutine[Any, Any, EnqueueResult]:
        """Check one request, and return the call that enqueues it.

        `expires` is the deadline, on the clock of the event loop. Default: the timeout of a call from now.
        Raises Refused; the call raises OutcomeUnknown, StorageError.
        """
        coalescer = self._enqueues.get(queue)
        if coalescer is None:
            # Only here, because a name that has a coalescer was checked before.
            check_enqueue_queue(queue, self._limits)
        plain = check_request(request, self._limits)
        if coalescer is None:
            coalescer = self._enqueues[queue] = self._new_enqueues(queue)
        return coalescer.add(CheckedRequest(request, plain), expires)

    def _new_enqueues(self, queue: str) -> Coalescer[CheckedRequest, EnqueueResult]:
        _drop_idle(self._enqueues)
        # None if the waits of this storage for locks have no limit.
        limited = with_lock_waits(self._storage, LOCK_WAIT)
        timeout = self._timeout(f"enqueue to queue {queue!r}")
        return Coalescer(
            partial(self._send_enqueues, limited or self._storage, queue),
            _request_size,
            timeout=timeout,
            lanes=self._lanes(limited, _request_id, timeout),
            direct=self._direct_enqueues(limited or self._storage, queue, timeout),
            is_filling=partial(self._is_starting, queue),
        )

    def _send_enqueues(
        self, storage: Storage, queue: str, requests: list[CheckedRequest]
    ) -> Awaitable[Sequence[EnqueueResult]]:
        return storage.enqueue(queue, self._batch(requests))

    def _batch(self, requests: list[CheckedRequest]) -> CheckedBatch:
        plain = all(checked.plain for checked in requests)
        return CheckedBatch.of([checked.request for checked in requests], self._limits, plain=plain)

    def _direct_enqueues(
        self, limited: Storage, queue: str, timeout: CallTimeout
    ) -> DirectCalls[CheckedRequest, EnqueueResult] | None:
        if (storage := ability(limited, DirectEnqueue)) is None:
            return None
        start, limits = storage.start_enqueue, self._limits

        def start_one(checked: CheckedRequest, on_end: OnEnd) -> bool:
            batch = CheckedBatch.of((checked.request,), limits, plain=checked.plain)
            return start(queue, batch, on_end)

        return DirectCalls(start_one, timeout)

    async def get(self, queue: str, id: str) -> Slot:
        """Return everything stored for one id: current job, blocked successor and outcome."""
        coalescer = self._gets.get(queue)
        if coalescer is None:
            _drop_idle(self._gets)
            timeout = self._timeout(f"get from queue {queue!r}")
            coalescer = self._gets[queue] = Coalescer(
                partial(self._storage.get, queue), read_only=True, timeout=timeout
            )
        return await coalescer.add(id)

    async def settle(self, queue: str, settlement: Settlement) -> SettleResult:
        """Store how one run ended: completed, failed, retried, ... Raises OutcomeUnknown, StorageError."""
        coalescer = self._settles.get(queue)
        if coalescer is None:
            _drop_idle(self._settles)
            # None if the waits of this storage for locks have no limit.
            limited = with_lock_waits(self._storage, LOCK_WAIT)
            timeout = self._timeout(f"settle in queue {queue!r}")
            coalescer = self._settles[queue] = Coalescer(
                partial((limited or self._storage).settle, queue),
                _settlement_size,
                timeout=timeout,
                lanes=self._lanes(limited, _settlement_id, timeout),
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


def _request_size(checked: CheckedRequest) -> int:
    return job_size(checked.request.job)


def _settlement_size(settlement: Settlement) -> int:
    action = settlement.action
    return len(action.result) if isinstance(action, Complete) and action.result else 0


def _request_id(checked: CheckedRequest) -> str:
    return checked.request.job.id


def _settlement_id(settlement: Settlement) -> str:
    return settlement.id


#: Seconds for which the retentions are cached: each wait reads one, and they rarely change.
CACHE_SECONDS: Final = 60.0


@define(eq=False)
class QueueRetentions:
    """The retentions that the queues of a storage are configured with, at most CACHE_SECONDS old.

    One read returns the settings of all queues. Concurrent callers share it, so that 10,000 waits which begin
    at once cause one read. A queue that the read did not return has the default retention.
    """

    _storage: Storage
    _by_queue: Mapping[str, OutcomeRetention] = field(factory=dict, init=False)
    #: The end of the cache's validity, by time.monotonic().
    _valid_until: float = field(default=0.0, init=False)
    _reads: Coalescer[str, OutcomeRetention] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reads = Coalescer(self._read, read_only=True)

    def known(self, queue: str) -> OutcomeRetention | None:
        """Return the retention of a queue if it is cached, else None."""
        return self._by_queue.get(queue, _DEFAULT) if time.monotonic() < self._valid_until else None

    async def get(self, queue: str) -> OutcomeRetention:
        """Return the retention of a queue. Raises StorageError if it cannot be read."""
        known = self.known(queue)
        return known if known is not None else await self._reads.add(queue)

    def forget(self) -> None:
        """Read the settings again at the next `get`. Called when this client changes them."""
        self._valid_until = 0.0

    async def drain(self) -> None:
        """Wait until the reads in flight have ended. Called before the storage closes."""
        await self._reads.drain()

    async def _read(self, queues: Sequence[str]) -> list[OutcomeRetention]:
        if time.monotonic() >= self._valid_until:
            valid_until = time.monotonic() + CACHE_SECONDS
            self._by_queue = {info.name: info.settings.retention for info in await self._storage.queues()}
            self._valid_until = valid_until
        return [self._by_queue.get(queue, _DEFAULT) for queue in queues]


_DEFAULT: Final = OutcomeRetention()
