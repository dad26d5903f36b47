"""Maintenance of queues, some in each turn: jobs of expired leases return, old records are removed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from dibs.model.results import Counts, PruneResult, ReapedJob
from dibs.storage.protocol import Storage

#: Largest number of jobs that one call of the storage's `reap` returns, and of records that `prune` removes.
BATCH_SIZE: Final = 1000
#: A queue with more ids is reaped without a count. A count costs O(n) in some storages, while a reap that
#: finds no job costs O(1) in all storages.
MAX_COUNTED_SIZE: Final = 1000
#: Seconds after which every queue is counted again, and after which the next idle queues are reaped.
REAP_ALL_EVERY: Final = 60.0
#: Largest number of idle queues that are reaped every REAP_ALL_EVERY seconds.
IDLE_QUEUES: Final = 10


async def reap(storage: Storage, queue: str) -> list[ReapedJob]:
    """Give every job under an expired lease back to its queue, and return a list of these jobs.

    docs/explanation/contract.md, section 3, Leases, defines the new state of each job. A batch that finds no
    job costs the storage O(1). Raise StorageError or OutcomeUnknown; call it again to reap the rest.
    """
    reaped: list[ReapedJob] = []
    while True:
        batch = await storage.reap(queue, BATCH_SIZE)
        reaped.extend(batch)
        if len(batch) < BATCH_SIZE:
            return reaped


@define(eq=False)
class ReapCandidates:
    """The queues that are worth reaping.

    One `counts` call for all queues finds the queues with active jobs, so idle queues need no reap call.
    """

    _storage: Storage
    _queues: Sequence[str]
    #: Turns of all queues, because a reap also removes expired leases without jobs.
    _idle: Rotation = field(init=False)
    #: Queues with more than MAX_COUNTED_SIZE ids at their last count.
    _large: set[str] = field(factory=set, init=False)
    #: The next time at which `select_queues` counts all queues, by time.monotonic().
    _reap_all_at: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._idle = Rotation(self._queues, IDLE_QUEUES)

    async def select_queues(self) -> list[str]:
        """Return the queues that may have jobs under expired leases: large ones and ones with active jobs.

        Every REAP_ALL_EVERY seconds also return IDLE_QUEUES of the others. Raise StorageError; the next call
        repeats the step that failed.
        """
        now = time.monotonic()
        all_due = now >= self._reap_all_at
        if all_due:
            self._large.clear()
        to_count = [queue for queue in self._queues if queue not in self._large]
        counts = await self._storage.counts(to_count) if to_count else {}
        self._large.update(
            queue for queue, numbers in counts.items() if _count_ids(numbers) > MAX_COUNTED_SIZE
        )
        found = [queue for queue in self._queues if queue in self._large or _has_leased_runs(counts[queue])]
        if all_due:
            self._reap_all_at = now + REAP_ALL_EVERY
            return list(dict.fromkeys((*found, *self._idle.next_turn())))
        return found


def _count_ids(numbers: Counts) -> int:
    return numbers.waiting + numbers.active + numbers.completed + numbers.failed + numbers.cancelled


def _has_leased_runs(numbers: Counts) -> bool:
    # A run that was handed off is active without a lease.
    return numbers.active > numbers.handed_off


@define(eq=False)
class Rotation:
    """A list of queues. Each turn takes the next part of it.

    The first turn begins at a random queue: programs that restart often then also reach the last queues.
    """

    _queues: Sequence[str]
    #: The largest number of queues in a turn.
    _most: int
    _next: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = random.randrange(len(self._queues)) if self._queues else 0  # noqa: S311 - no secret

    def next_turn(self) -> Sequence[str]:
        """Return the queues of the next turn: all of them if they are few enough."""
        if len(self._queues) <= self._most:
            return self._queues
        first, self._next = self._next, (self._next + self._most) % len(self._queues)
        return [*self._queues[first:], *self._queues[:first]][: self._most]


async def prune(storage: Storage, queue: str) -> PruneResult:
    """Remove all expired outcomes and request keys of a queue, and the events its log need not keep.

    Return the sums over all batches. A prune only frees space: every operation treats an expired record as
    absent, also before it is pruned.
    Raise StorageError or OutcomeUnknown; call it again to remove the rest.
    """
    outcomes = request_keys = events = 0
    while True:
        batch = await storage.prune(queue, BATCH_SIZE)
        outcomes += batch.outcomes
        request_keys += batch.request_keys
        events += batch.events
        if not batch.more:
            return PruneResult(outcomes=outcomes, request_keys=request_keys, events=events)
