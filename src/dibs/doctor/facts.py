"""The facts that the checks of queues and workers look at, read once in bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from dibs.client.worker_info import WorkerInfo, read_records
from dibs.model.requests import Settings
from dibs.model.results import Counts
from dibs.model.worker_record import without_reserved
from dibs.storage.protocol import Storage

#: Queues that one call counts, and seconds after which no further call is made.
COUNTED_AT_ONCE: Final = 100
COUNT_SECONDS: Final = 2.0


@frozen
class Facts:
    """The queues, their counts, and the workers that live."""

    settings: Mapping[str, Settings]
    #: The queues that were counted in time.
    counts: Mapping[str, Counts]
    workers: Sequence[WorkerInfo]
    #: The queues of each worker that can claim.
    served: frozenset[str] = field(init=False)
    #: False if the record of a worker has no room for all its queues.
    knows_all_served: bool = field(init=False)

    @served.default
    def _find_served(self) -> frozenset[str]:
        return frozenset(queue for worker in self.claiming() for queue in worker.queues)

    @knows_all_served.default
    def _compare_numbers(self) -> bool:
        return all(worker.queue_count <= len(worker.queues) for worker in self.workers)

    def claiming(self) -> Iterator[WorkerInfo]:
        """Yield the workers that can claim jobs."""
        return (worker for worker in self.workers if worker.ready and not worker.stopping)

    def is_unserved(self, queue: str, settings: Settings, counts: Counts) -> bool:
        """Return whether jobs of a queue are due and no worker that lives claims them."""
        # A program that calls `receive` keeps no record, but it holds jobs.
        is_served = queue in self.served or counts.active > counts.handed_off or not self.knows_all_served
        return counts.waiting > counts.scheduled and not settings.paused and not is_served

    def counted(self) -> Iterator[tuple[str, Settings, Counts]]:
        """Yield the name, settings and counts of each queue that was counted."""
        return ((name, self.settings[name], counts) for name, counts in self.counts.items())


async def read_facts(storage: Storage) -> Facts:
    """Read queues, counts and workers. Counts stop after COUNT_SECONDS. Raise StorageError."""
    infos = without_reserved(await storage.queues())
    settings = {info.name: info.settings for info in sorted(infos, key=lambda info: info.name)}
    counts: dict[str, Counts] = {}
    end, names = time.monotonic() + COUNT_SECONDS, list(settings)
    for first in range(0, len(names), COUNTED_AT_ONCE):
        try:
            async with asyncio.timeout(max(0.1, end - time.monotonic())):
                counts |= await storage.counts(names[first : first + COUNTED_AT_ONCE])
        except TimeoutError:
            break
        if time.monotonic() >= end:
            break
    return Facts(settings, counts, await read_records(storage))
