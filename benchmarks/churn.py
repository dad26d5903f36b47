"""Measure the tables of Postgres while jobs pass: `python -m benchmarks.churn [--jobs N] [--held BY]`.

A number of jobs waits all the time. Each step enqueues a batch, claims as many jobs, and completes those of
the step before. Outcomes are not kept. Vacuums are those of the storage and of autovacuum with its default
settings; a prune runs every PRUNE_SECONDS, as in a worker. The sizes include indexes.

With `--held` another session holds an old snapshot while all but the first and the last part of the jobs
pass, so nothing can be vacuumed: a report (REPEATABLE READ), a `pg_dump` that writes into a full pipe, a
report on a standby with hot_standby_feedback, or a transaction that has enqueued a job and stays open. With
`--rate`, the steps begin at fixed times, and the time of a step counts from the time at which it should have
begun; with `--waiting 0` it is the wait of its jobs. The CPU time of the server is for a job, with all verbs
and background processes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from statistics import quantiles
from typing import Final

import psycopg
from attrs import frozen
from rich.console import Console
from rich.table import Table

from benchmarks.peers.environments import tree_cpu_us
from benchmarks.storages import empty_storage
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.servers import PostgresServer, start_postgres
from dibs_conformance.servers.postgres import start_standby

QUEUE: Final = "q"
HOLDERS: Final = ("report", "dump", "standby", "enqueue")
LEASE_MS: Final = 3_600_000
#: Seconds between two prunes, PRUNE_EVERY of a worker.
PRUNE_SECONDS: Final = 60.0
#: Readings after the first one.
READINGS: Final = 5

_SIZES: Final = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname LIKE 'bench_%' AND c.relkind = 'r' AND c.relname IN ('live', 'ended', 'traces', 'events')
"""

#: A table that fills the pipe of a dump.
_BALLAST: Final = "CREATE TABLE ballast AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 20000) n"

#: Table -> bytes of its rows, and bytes of its indexes.
Sizes = dict[str, tuple[int, int]]


@frozen
class Reading:
    """The sizes after a number of jobs, and what the part before cost."""

    jobs: int
    sizes: Sizes
    is_held: bool = False
    #: CPU time of the server, µs a job.
    server_us: float = 0.0
    #: Times of a step on the clock, ms: the median, and the 95th percentile.
    step_ms: tuple[float, float] = (0.0, 0.0)


def read_sizes(url: str) -> Sizes:
    """Return the sizes of the tables in the only schema of this benchmark."""
    with psycopg.connect(url, autocommit=True) as connection:
        return {name: (rows, indexes) for name, rows, indexes in connection.execute(_SIZES)}


@contextmanager
def old_snapshot(server: PostgresServer, holder: str, enqueue: str) -> Iterator[None]:
    """Hold a snapshot in another session. `holder` is one of HOLDERS; `enqueue` is an SQL statement."""
    with ExitStack() as stack:
        if holder == "dump":
            command = [str(server.found.path / "pg_dump"), "--dbname", server.url]
            dump = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(dump.kill)
            assert dump.stdout is not None
            dump.stdout.read(1)
        else:
            url = server.url
            if holder == "standby":
                standby = start_standby(server)
                stack.callback(standby.stop)
                url = standby.url
            session = stack.enter_context(psycopg.connect(url))
            stack.callback(session.rollback)
            if holder == "enqueue":
                session.execute(enqueue)
            else:
                session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                session.execute("SELECT count(*) FROM pg_class")
        yield


class Churn:
    """A storage through which `batch` jobs pass in a step, and at most `rate` in a second."""

    def __init__(self, storage: Storage, batch: int, rate: float | None) -> None:
        self._storage = storage
        self._batch = batch
        self._period = batch / rate if rate else 0.0
        self._ids = count()
        self._settlements: Sequence[Settlement] = ()
        self._pruned_at = time.monotonic()
        self._lease = ""

    async def start(self, waiting: int) -> None:
        """Create the queue with its waiting jobs, and take a lease."""
        patch = SettingsPatch(retention=OutcomeRetention(completed=0))
        await self._storage.configure(QUEUE, patch)
        for _ in range(0, waiting, self._batch):
            await self._enqueue()
        self._lease = (await self._storage.grant([QUEUE], LEASE_MS, "churn")).lease

    async def pass_through(self, jobs: int) -> list[float]:
        """Enqueue, claim and complete this number of jobs. Return the seconds that each step took."""
        steps: list[float] = []
        first = time.perf_counter()
        for number in range(jobs // self._batch):
            started = time.perf_counter()
            if self._period:
                await asyncio.sleep(max(0.0, first + number * self._period - started))
                started = first + number * self._period
            await self._enqueue()
            answer = await self._storage.settle_and_claim(QUEUE, self._settlements, self._lease, self._batch)
            self._settlements = [
                Settlement(id=job.id, fence=job.run.fence, action=Complete())
                for job in answer.claim.jobs
                if job.run
            ]
            steps.append(time.perf_counter() - started)
            if time.monotonic() - self._pruned_at >= PRUNE_SECONDS:
                await self._prune()
        return steps

    async def _enqueue(self) -> None:
        data = JobData(payload=b'{"x":1,"y":22}')
        jobs = [NewJob(id=f"{next(self._ids):026}", data=data) for _ in range(self._batch)]
        await self._storage.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])

    async def _prune(self) -> None:
        while (await self._storage.prune(QUEUE, 1000)).more:
            pass
        self._pruned_at = time.monotonic()


async def measure(server: PostgresServer, options: argparse.Namespace) -> list[Reading]:
    """Return a reading at the start, and one after each part of the jobs."""
    part = options.jobs // READINGS
    with ExitStack() as snapshot:
        async with empty_storage(f"{server.url}?schema=NAME") as storage:
            churn = Churn(storage, options.batch, options.rate)
            await churn.start(options.waiting)
            readings = [Reading(0, read_sizes(server.url))]
            for number in range(READINGS):
                is_held = options.held is not None and 0 < number < READINGS - 1
                if is_held and number == 1:
                    snapshot.enter_context(old_snapshot(server, options.held, enqueue_statement(server.url)))
                if not is_held:
                    snapshot.close()
                before = tree_cpu_us(server.pid)
                steps = await churn.pass_through(part)
                used = (tree_cpu_us(server.pid) - before) / part
                cuts = [cut * 1e3 for cut in quantiles(steps, n=20)]
                found = Reading(
                    part * (number + 1),
                    read_sizes(server.url),
                    is_held,
                    used,
                    (cuts[9], cuts[-1]),
                )
                readings.append(found)
            return readings


def enqueue_statement(url: str) -> str:
    """Return a statement that enqueues one job into the only schema of this benchmark."""
    with psycopg.connect(url) as connection:
        ((schema,),) = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench_%'")
    return f"""SELECT "{schema}".enqueue_job('{QUEUE}', payload => '1')"""


def report(readings: list[Reading]) -> Table:
    """Return a table with a row for each reading: MiB of rows + indexes, and `live` relative to its start."""
    names = [name for name in ("live", "ended", "traces", "events") if name in readings[0].sizes]
    headers = [f"{name}, MiB" for name in names]
    table = Table("jobs passed", "snapshot", "server, us a job", "step, ms", "p95", *headers, "live / start")
    first = sum(readings[0].sizes["live"])
    for each in readings:
        sizes = [f"{each.sizes[name][0] / 2**20:.1f} + {each.sizes[name][1] / 2**20:.1f}" for name in names]
        median, p95 = each.step_ms
        table.add_row(
            f"{each.jobs:,}",
            "held" if each.is_held else "",
            f"{each.server_us:.1f}",
            f"{median:.1f}",
            f"{p95:.1f}",
            *sizes,
            f"{sum(each.sizes['live']) / first:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs that pass through")
    parser.add_argument("--waiting", type=int, default=20_000, help="jobs that wait at any time")
    parser.add_argument("--batch", type=int, default=500, help="jobs of a step")
    parser.add_argument("--rate", type=float, help="jobs a second, at most")
    parser.add_argument("--held", choices=HOLDERS, help="who holds a snapshot during the middle parts")
    options = parser.parse_args()
    with start_postgres(fsync="on", autovacuum="on", hot_standby_feedback="on") as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(_BALLAST)
        readings = asyncio.run(measure(server, options))
    Console(width=130).print(report(readings))


if __name__ == "__main__":
    main()
