"""One client process against two on each server: `python -m benchmarks.clients [--jobs N] [--rounds N]`.

Both start at one signal; the rate is that of all jobs from the first beginning to the last end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from statistics import median
from typing import Final
from uuid import uuid4

from rich.table import Table

from benchmarks.scenarios import BATCH, claim_and_complete, fill, requests
from benchmarks.servers import private_servers
from dibs.cli import output
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage

WORK: Final = ("enqueue", "claim + complete")
#: Where a client finds the URL: everyone on the machine may read a command line.
URL: Final = "DIBS_BENCHMARK_URL"


async def client(work: str, jobs: int, number: int) -> None:
    """Say that it is ready, wait for a line, do its share, and print when it began and ended."""
    async with open_storage(os.environ[URL]) as storage:
        wanted = requests(jobs, prefix=f"job-{number}") if work == "enqueue" else []
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        if work == "enqueue":
            for start in range(0, jobs, BATCH):
                await storage.enqueue("clients", wanted[start : start + BATCH])
        else:
            await claim_and_complete(storage, "clients", jobs)
        print(json.dumps([begun, time.monotonic()]), flush=True)


async def rate(url: str, work: str, clients: int, jobs: int) -> float:
    """Return how many jobs a second so many clients did together, at a place of their own."""
    there = url.replace("PLACE", f"bench_{uuid4().hex}")
    async with open_storage(there) as storage:
        await _prepare(storage, work, clients, jobs)
        children = [await _start(there, work, jobs // clients, n) for n in range(clients)]
        spans = await asyncio.gather(*(_let_go(child) for child in children))
    await remove_storage(there)
    return jobs / (max(end for _, end in spans) - min(begun for begun, _ in spans))


async def _prepare(storage: Storage, work: str, clients: int, jobs: int) -> None:
    if work != "enqueue":
        # A client holds one batch more when it is done: the other must not wait for it.
        await fill(storage, "clients", requests(jobs + clients * BATCH))


async def _start(url: str, work: str, jobs: int, number: int) -> Process:
    words = ("-m", "benchmarks.clients", "--client", work, "--jobs", str(jobs), "--number", str(number))
    child = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=PIPE, stdout=PIPE, env={**os.environ, URL: url}
    )
    assert child.stdout
    await child.stdout.readline()
    return child


async def _let_go(child: Process) -> tuple[float, float]:
    told, _ = await child.communicate(b"go\n")
    begun, ended = json.loads(told)
    return begun, ended


async def measure(urls: list[str], *, jobs: int, rounds: int) -> Table:
    """Return the medians as a table."""
    table = Table(
        "storage", "100 a call", "1 client/s", "2 clients/s", "gain", title="jobs a second together"
    )
    for url in urls:
        for work in WORK:
            pairs = [[await rate(url, work, clients, jobs) for clients in (1, 2)] for _ in range(rounds)]
            one, two = (median(column) for column in zip(*pairs, strict=True))
            gain = median(both / alone for alone, both in pairs)
            table.add_row(url.partition(":")[0], work, f"{one:,.0f}", f"{two:,.0f}", f"{gain:.2f}")
    return table


def main() -> None:
    """Be a client, or start some and print what they did."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.client:
        asyncio.run(client(words.client, words.jobs, words.number))
        return
    with private_servers() as (urls, told):
        output.console().print(asyncio.run(measure(urls, jobs=words.jobs, rounds=words.rounds)), told)


if __name__ == "__main__":
    main()
