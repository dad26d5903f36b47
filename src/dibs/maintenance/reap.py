"""The return of jobs whose workers have died: the lease they were claimed under has expired."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from dibs.model.results import Counts, ReapedJob
from dibs.storage.protocol import Storage

#: Jobs that one call of the storage's `reap` returns at most.
BATCH_SIZE: Final = 1000
#: Ids of a queue up to which it is counted. A count costs O(n) in some storages, an empty reap O(1) in all.
MAX_COUNTED_SIZE: Final = 1000
#: Seconds after which every queue is reaped and counted again.
REAP_ALL_EVERY: Final = 60.0


async def reap(storage: Storage, queue: str) -> list[ReapedJob]:
    """Return every job under an expired lease to the queue, and return the list of them.

    The contract, section 3, Leases, defines their new states. A batch that finds no job costs the storage
    O(1). Raise StorageError or OutcomeUnknown; call it again to reap the rest.
    """
    reaped: list[ReapedJob] = []
    while True:
        batch = await storage.reap(queue, BATCH_SIZE)
        reaped.extend(batch)
        if len(batch) < BATCH_SIZE:
            return reaped


@define(eq=False)
class ReapCandidates:
    """The choice of queues to reap: one call counts all queues, and idle queues are not reaped."""

    _storage: Storage
    _queues: Sequence[str]
    #: Queues with more than MAX_COUNTED_SIZE ids at their last count.
    _large: set[str] = field(factory=set, init=False)
    #: When all queues are reaped next, by time.monotonic().
    _reap_all_at: float = field(default=0.0, init=False)

    async def queues(self) -> list[str]:
        """Return the queues that may have jobs under expired leases: large ones and ones with active jobs.

        Every REAP_ALL_EVERY seconds return all queues, because a reap also removes expired leases without
        jobs. Raise StorageError; the next call repeats the step that failed.
        """
        now = time.monotonic()
        all_due = now >= self._reap_all_at
        if all_due:
            self._large.clear()
        to_count = [queue for queue in self._queues if queue not in self._large]
        counts = await self._storage.counts(to_count) if to_count else {}
        self._large.update(queue for queue, numbers in counts.items() if _size(numbers) > MAX_COUNTED_SIZE)
        if all_due:
            self._reap_all_at = now + REAP_ALL_EVERY
            return list(self._queues)
        return [queue for queue in self._queues if queue in self._large or _has_leased_runs(counts[queue])]


def _size(numbers: Counts) -> int:
    return numbers.waiting + numbers.active + numbers.completed + numbers.failed + numbers.cancelled


def _has_leased_runs(numbers: Counts) -> bool:
    # A run that was handed off is active without a lease.
    return numbers.active > numbers.handed_off
