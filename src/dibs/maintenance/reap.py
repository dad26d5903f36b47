"""Bringing back the jobs of workers that are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from dibs.model.results import Counts, ReapedJob
from dibs.storage.protocol import Storage

#: How many jobs one step brings back.
STEP: Final = 1000
#: A queue of so many ids is not counted again: to count is O(n) in some storages, a reap O(1) in all.
CROWDED: Final = 1000
#: Seconds after which every queue is reaped and counted, whatever was known of it.
ANYWAY: Final = 60.0


async def reap(storage: Storage, queue: str) -> list[ReapedJob]:
    """Bring back every job of the queue under an expired lease, and say which (contract 3, Leases).

    A step that finds nothing costs the storage O(1). Raises StorageError, OutcomeUnknown; then the rest
    is for the next time.
    """
    found: list[ReapedJob] = []
    while True:
        step = await storage.reap(queue, STEP)
        found.extend(step)
        if len(step) < STEP:
            return found


class ReapCandidates:
    """Tells which of many queues are worth a reap, so that the idle ones cost no round trip of their own."""

    def __init__(self, storage: Storage, queues: Sequence[str]) -> None:
        self._storage = storage
        self._queues = queues
        self._crowded: set[str] = set()
        self._anyway_at = 0.0

    async def queues(self) -> list[str]:
        """Return where jobs may be under expired leases: where one is active, or too many are to be counted.

        All are counted in one call. Once a minute all are returned: leases without jobs go with a reap, too.
        Raises StorageError; then none is passed over the next time.
        """
        now = time.monotonic()
        anyway = now >= self._anyway_at
        if anyway:
            self._crowded.clear()
        counted = [queue for queue in self._queues if queue not in self._crowded]
        counts = await self._storage.counts(counted) if counted else {}
        self._crowded.update(queue for queue, numbers in counts.items() if _size(numbers) > CROWDED)
        if anyway:
            self._anyway_at = now + ANYWAY
            return list(self._queues)
        return [queue for queue in self._queues if queue in self._crowded or _holds(counts[queue])]


def _size(numbers: Counts) -> int:
    return numbers.waiting + numbers.active + numbers.completed + numbers.failed + numbers.cancelled


def _holds(numbers: Counts) -> bool:
    return numbers.active > numbers.handed_off
