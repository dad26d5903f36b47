"""Measure turns of keys: `python -m benchmarks.turns [--quick] [--only KIND]`.

A queue has a flood of jobs of one key, and 10 jobs of each of many other keys. A claim of 100 jobs is
measured with `fair` and without: the CPU time of the server for a job, in rounds in turn. Without `fair` a
claim takes jobs of the flood alone; with it, each job is one of another key. At the end a new key gets its
first job. The report says how many other runs start before it: at most one round, which is the number of
keys with waiting jobs.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median
from typing import Final

from attrs import frozen
from rich.console import Console
from rich.table import Table

from benchmarks.peers.environments import tree_cpu_us
from benchmarks.scenarios import BATCH, LEASE, fill
from benchmarks.storages import empty_storage
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.protocol import Storage
from dibs_conformance.servers import start_postgres, start_redis

#: By name of a queue: whether its keys take turns.
QUEUES: Final = {"unfair": False, "fair": True}
ROUNDS: Final = 5
#: Jobs of each key beside the flood.
JOBS_OF_KEY: Final = 10


@frozen
class Measured:
    """The CPU time of the server for a claimed job in µs, by queue and round, and the wait of a new key."""

    cpu_us: dict[str, list[float]]
    runs_before_new_key: int

    @property
    def ratios(self) -> list[float]:
        return [fair / unfair for unfair, fair in zip(*self.cpu_us.values(), strict=True)]


def requests(prefix: str, count: int, keys: int) -> list[EnqueueRequest]:
    """Return `count` requests; request n has the key number n modulo `keys`."""
    return [
        EnqueueRequest(
            job=NewJob(id=f"{prefix}{n:09d}", data=JobData(payload=b"1", key=f"{prefix}{n % keys}"))
        )
        for n in range(count)
    ]


async def measure(storage: Storage, server: int, flood: int, keys: int, claims: int) -> Measured:
    """Fill both queues, and measure `claims` claims of each in each round. `server` is a process id."""
    leases = {}
    for queue, fair in QUEUES.items():
        await storage.configure(queue, SettingsPatch(fair=fair, log_level="off"))
        await fill(storage, queue, requests("flood", flood, 1))
        await fill(storage, queue, requests("key", keys * JOBS_OF_KEY, keys))
        leases[queue] = (await storage.grant([queue], LEASE, "benchmark")).lease
    cpu_us: dict[str, list[float]] = {queue: [] for queue in QUEUES}
    for _ in range(ROUNDS):
        for queue, lease in leases.items():
            started, before = 0, tree_cpu_us(server)
            for _ in range(claims):
                started += len((await storage.claim(queue, lease, BATCH)).jobs)
            cpu_us[queue].append((tree_cpu_us(server) - before) / started)
    await storage.enqueue("fair", requests("new", 1, 1))
    runs = 0
    while True:
        ids = [job.id for job in (await storage.claim("fair", leases["fair"], BATCH)).jobs]
        if "new000000000" in ids:
            return Measured(cpu_us, runs + ids.index("new000000000"))
        runs += len(ids)


async def measure_at(url: str, server: int, flood: int, keys: int, claims: int) -> Measured:
    async with empty_storage(url) as storage:
        return await measure(storage, server, flood, keys, claims)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, and fewer claims")
    parser.add_argument("--only", choices=("redis", "postgres"), help="measure one storage")
    options = parser.parse_args()
    flood, keys, claims = (100_000, 1_000, 10) if options.quick else (1_000_000, 10_000, 100)
    table = Table("storage", "unfair, µs a job", "fair, µs a job", "ratio", "runs before a new key")
    with start_redis() as redis, start_postgres() as postgres:
        servers = {
            "redis": (f"{redis.url}?prefix=NAME", redis),
            "postgres": (f"{postgres.url}?schema=NAME", postgres),
        }
        for kind, (url, server) in servers.items():
            if options.only in (None, kind):
                found = asyncio.run(measure_at(url, server.pid, flood, keys, claims))
                unfair, fair = (f"{median(times):.1f}" for times in found.cpu_us.values())
                table.add_row(
                    kind,
                    unfair,
                    fair,
                    f"{median(found.ratios):.2f}",
                    f"{found.runs_before_new_key:,} of {keys + 1:,}",
                )
    Console().print(table)


if __name__ == "__main__":
    main()
