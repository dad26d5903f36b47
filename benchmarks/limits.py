"""Measure limits by key: `python -m benchmarks.limits [URL ...] [--servers] [--backlog N] [--keys N]`.

Three rates in jobs a second, for each storage in each round:

- `alone`: the drain of jobs of other keys, under per_key=1.
- `behind`: the same drain behind a backlog of waiting jobs of one key that has no room. All these jobs are
  due before the others.
- `keys`: the drain of one job of each key under per_key=1. `no limit` is the same drain without limits.

The table shows medians, and the ratios of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from attrs import define, field, frozen
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import report
from benchmarks.scenarios import BATCH, LEASE, PAYLOAD, claim_and_complete, fill
from benchmarks.storages import empty_storage, private_servers
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.protocol import Storage

QUEUE: Final = "limited"
FULL_KEY: Final = "full"
#: Jobs of a full key that any storage sets aside in one claim, at least.
FILED_PER_CLAIM: Final = 5_000
#: Requests of a drain before the other drain has its turn.
CALLS_PER_TURN: Final = 5


@frozen
class Size:
    """The sizes of the measurements."""

    #: Waiting jobs of the full key.
    backlog: int
    #: Keys, and jobs of a drain.
    keys: int


def keyed_requests(count: int, key: Callable[[int], str], prefix: str) -> list[EnqueueRequest]:
    return [
        EnqueueRequest(job=NewJob(id=f"{prefix}-{n:09d}", data=JobData(payload=PAYLOAD, key=key(n))))
        for n in range(count)
    ]


@define
class Drain:
    """A drain of one storage that other drains may interrupt, and its seconds so far."""

    storage: Storage
    jobs: int
    lease: str
    settlements: list[Settlement] = field(factory=list)
    settled: int = 0
    seconds: float = 0.0

    async def take_turn(self) -> None:
        """Send CALLS_PER_TURN requests. Each settles the jobs of the one before, and claims BATCH more."""
        started = time.perf_counter()
        for _ in range(CALLS_PER_TURN):
            result = await self.storage.settle_and_claim(QUEUE, self.settlements, self.lease, BATCH)
            self.settlements = [
                Settlement(id=job.id, fence=job.run.fence, action=Complete(result=b"null"))
                for job in result.claim.jobs
                if job.run is not None
            ]
            self.settled += len(result.settled)
        self.seconds += time.perf_counter() - started

    @property
    def rate(self) -> float:
        """Jobs settled a second."""
        return self.settled / self.seconds


async def prepare_drain(storage: Storage, size: Size, backlog: int) -> Drain:
    """Fill a storage with jobs of many keys, behind `backlog` jobs of a key whose only run stays active."""
    await storage.configure(QUEUE, SettingsPatch(per_key=1))
    lease = (await storage.grant([QUEUE], LEASE, "holder of the full key")).lease
    await fill(storage, QUEUE, keyed_requests(1 + backlog, lambda _: FULL_KEY, "full"))
    await storage.claim(QUEUE, lease, 1)
    await fill(storage, QUEUE, keyed_requests(size.keys, lambda n: f"key-{n}", "other"))
    # Some storages set the waiting jobs of a key without room aside once, a part of them in each claim.
    claims = 1 + backlog // FILED_PER_CLAIM
    for _ in range(claims):
        await storage.claim(QUEUE, lease, 1)
    return Drain(storage, size.keys - claims - (CALLS_PER_TURN + 1) * BATCH, lease)


async def drain_in_turns(drains: Sequence[Drain]) -> None:
    """Drain several storages in turns, so that a change of the machine's speed affects all of them."""
    while all(drain.settled < drain.jobs for drain in drains):
        for drain in drains:
            await drain.take_turn()


async def drain_keys(storage: Storage, size: Size, per_key: int | None) -> float:
    """Drain one job of each of many keys."""
    await storage.configure(QUEUE, SettingsPatch(per_key=per_key))
    await fill(storage, QUEUE, keyed_requests(size.keys, lambda n: f"key-{n}", "job"))
    return await claim_and_complete(storage, QUEUE, size.keys)


async def measure_round(url: str, size: Size) -> dict[str, float]:
    """Return the four rates, each on a storage of its own. The first two drains take turns."""
    async with empty_storage(url) as first, empty_storage(url) as second:
        alone = await prepare_drain(first, size, 0)
        behind = await prepare_drain(second, size, size.backlog)
        await drain_in_turns([alone, behind])
    async with empty_storage(url) as storage:
        no_limit = await drain_keys(storage, size, None)
    async with empty_storage(url) as storage:
        keys = await drain_keys(storage, size, 1)
    return {"alone": alone.rate, "behind": behind.rate, "no_limit": no_limit, "keys": keys}


def measure(urls: list[str], size: Size, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the rates of each round by URL."""
    found: dict[str, list[dict[str, float]]] = {url: [] for url in urls}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(urls))
        for _ in range(rounds):
            for url in urls:
                found[url].append(asyncio.run(measure_round(url, size)))
                progress.advance(task)
    return found


def row(url: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of one storage. A ratio above 1 says how many times longer a job takes."""
    rates = {name: round(median(each[name] for each in rounds)) for name in rounds[0]}
    return {
        "storage": url.partition(":")[0],
        **rates,
        "behind_ratio": round(median(each["alone"] / each["behind"] for each in rounds), 3),
        "keys_ratio": round(median(each["no_limit"] / each["keys"] for each in rounds), 3),
    }


def main() -> None:
    """Measure the storages and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="storages; NAME stands for a new, empty one")
    parser.add_argument("--servers", action="store_true", help="add private Redis and Postgres servers")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="jobs of the full key (1,000,000)")
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the drains (100,000)")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each (1)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()
    size = Size(options.backlog, options.keys)
    with ExitStack() as stack:
        urls = options.urls or ["memory:NAME"]
        if options.servers:
            urls += stack.enter_context(private_servers())[0]
        rows = [row(url, rounds) for url, rounds in measure(urls, size, options.rounds).items()]
    table = Table("storage", "alone /s", "behind /s", "ratio", "no limit /s", "keys /s", "ratio")
    for one in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in _cells(one)))
    report.open_console().print(
        table, f"behind {size.backlog:,} jobs of a full key; {size.keys:,} keys under per_key=1"
    )
    report.write_json(options.json, rows)


def _cells(one: dict[str, Any]) -> tuple[Any, ...]:
    order = ("storage", "alone", "behind", "behind_ratio", "no_limit", "keys", "keys_ratio")
    return tuple(one[name] for name in order)


if __name__ == "__main__":
    main()
