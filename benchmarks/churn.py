"""Measure the tables of Postgres while jobs pass through: `python -m benchmarks.churn [--jobs N]`.

A number of jobs waits all the time. Each step enqueues a batch, claims as many jobs, and completes those of
the step before. Outcomes are not kept. Vacuums are those of the storage and of autovacuum with its default
settings; a prune runs every PRUNE_SECONDS, as in a worker. The sizes include indexes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Final

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.storages import empty_storage
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.servers import start_postgres

QUEUE: Final = "q"
BATCH: Final = 500
LEASE_MS: Final = 3_600_000
#: Seconds between two prunes, PRUNE_EVERY of a worker.
PRUNE_SECONDS: Final = 60.0
#: Readings of the sizes after the first one.
READINGS: Final = 4

_SIZES: Final = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname LIKE 'bench_%' AND c.relkind = 'r' AND c.relname IN ('live', 'ended', 'traces', 'events')
"""

#: Table -> bytes of its rows, and bytes of its indexes.
Sizes = dict[str, tuple[int, int]]


def read_sizes(url: str) -> Sizes:
    """Return the sizes of the tables in the only schema of this benchmark."""
    with psycopg.connect(url, autocommit=True) as connection:
        return {name: (rows, indexes) for name, rows, indexes in connection.execute(_SIZES)}


class Churn:
    """A storage in which `waiting` jobs wait at any time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._ids = count()
        self._settlements: Sequence[Settlement] = ()
        self._pruned_at = time.monotonic()
        self._lease = ""

    async def start(self, waiting: int) -> None:
        """Create the queue with its waiting jobs, and take a lease."""
        patch = SettingsPatch(retention=OutcomeRetention(completed=0))
        await self._storage.configure(QUEUE, patch)
        for _ in range(0, waiting, BATCH):
            await self._enqueue()
        self._lease = (await self._storage.grant([QUEUE], LEASE_MS, "churn")).lease

    async def pass_through(self, jobs: int) -> None:
        """Enqueue, claim and complete this number of jobs."""
        for _ in range(0, jobs, BATCH):
            await self._enqueue()
            claim = (await self._storage.settle_and_claim(QUEUE, self._settlements, self._lease, BATCH)).claim
            self._settlements = [
                Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in claim.jobs if job.run
            ]
            if time.monotonic() - self._pruned_at >= PRUNE_SECONDS:
                await self._prune()

    async def _enqueue(self) -> None:
        data = JobData(payload=b'{"x":1,"y":22}')
        jobs = [NewJob(id=f"{next(self._ids):026}", data=data) for _ in range(BATCH)]
        await self._storage.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])

    async def _prune(self) -> None:
        while (await self._storage.prune(QUEUE, 1000)).more:
            pass
        self._pruned_at = time.monotonic()


async def measure(url: str, waiting: int, jobs: int) -> list[tuple[int, Sizes]]:
    """Return the sizes at the start, and after each part of the jobs."""
    async with empty_storage(f"{url}?schema=NAME") as storage:
        churn = Churn(storage)
        await churn.start(waiting)
        readings = [(0, read_sizes(url))]
        for part in range(READINGS):
            await churn.pass_through(jobs // READINGS)
            readings.append((jobs // READINGS * (part + 1), read_sizes(url)))
        return readings


def report(readings: list[tuple[int, Sizes]]) -> Table:
    """Return a table with a row for each reading: MiB of rows + indexes, and `live` relative to its start."""
    names = [name for name in ("live", "ended", "traces", "events") if name in readings[0][1]]
    table = Table("jobs passed", *(f"{name}, MiB" for name in names), "live / start")
    first = sum(readings[0][1]["live"])
    for jobs, sizes in readings:
        cells = [f"{sizes[name][0] / 2**20:.1f} + {sizes[name][1] / 2**20:.1f}" for name in names]
        table.add_row(f"{jobs:,}", *cells, f"{sum(sizes['live']) / first:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs that pass through")
    parser.add_argument("--waiting", type=int, default=20_000, help="jobs that wait at any time")
    arguments = parser.parse_args()
    with start_postgres(fsync="on", autovacuum="on") as server:
        readings = asyncio.run(measure(server.url, arguments.waiting, arguments.jobs))
    Console(width=120).print(report(readings))


if __name__ == "__main__":
    main()
