"""Compare one client process with two, on Redis and Postgres: `python -m benchmarks.clients [--jobs N]
[--rounds N]`.

Both clients start together. The rate counts all jobs, from the first start to the last end.
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

from benchmarks import report
from benchmarks.scenarios import BATCH, claim_and_complete, fill, requests
from benchmarks.storages import private_servers
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage

WORK: Final = ("enqueue", "claim + complete")
#: Environment variable with the URL. Other users of the machine can read the command line of a process.
URL_VARIABLE: Final = "DIBS_BENCHMARK_URL"


async def run_client(work: str, jobs: int, number: int) -> None:
    """Print "ready", wait for a line on stdin, work, and print the times of start and end."""
    async with open_storage(os.environ[URL_VARIABLE]) as storage:
        batch = requests(jobs, prefix=f"job-{number}") if work == "enqueue" else []
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.monotonic()
        if work == "enqueue":
            for start in range(0, jobs, BATCH):
                await storage.enqueue("clients", batch[start : start + BATCH])
        else:
            await claim_and_complete(storage, "clients", jobs)
        print(json.dumps([started, time.monotonic()]), flush=True)


async def rate(url: str, work: str, clients: int, jobs: int) -> float:
    """Return the jobs a second of so many clients together, on a new storage."""
    storage_url = url.replace("NAME", f"bench_{uuid4().hex}")
    async with open_storage(storage_url) as storage:
        await _prepare(storage, work, clients, jobs)
        children = [await _start(storage_url, work, jobs // clients, n) for n in range(clients)]
        spans = await asyncio.gather(*(_signal_start(child) for child in children))
    await remove_storage(storage_url)
    return jobs / (max(end for _, end in spans) - min(start for start, _ in spans))


async def _prepare(storage: Storage, work: str, clients: int, jobs: int) -> None:
    if work != "enqueue":
        # A client holds one more batch at its end. Without these jobs the other client would wait for them.
        await fill(storage, "clients", requests(jobs + clients * BATCH))


async def _start(url: str, work: str, jobs: int, number: int) -> Process:
    arguments = ("-m", "benchmarks.clients", "--client", work, "--jobs", str(jobs), "--number", str(number))
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=PIPE, stdout=PIPE, env={**os.environ, URL_VARIABLE: url}
    )
    assert child.stdout
    await child.stdout.readline()
    return child


async def _signal_start(child: Process) -> tuple[float, float]:
    """Start a client and return the times of its start and end."""
    reply, _ = await child.communicate(b"go\n")
    started, ended = json.loads(reply)
    return started, ended


async def measure(urls: list[str], *, jobs: int, rounds: int) -> Table:
    """Return a table of the medians."""
    table = Table(
        "storage", "100 a call", "1 client/s", "2 clients/s", "gain", title="jobs a second of all clients"
    )
    for url in urls:
        for work in WORK:
            pairs = [[await rate(url, work, clients, jobs) for clients in (1, 2)] for _ in range(rounds)]
            one, two = (median(column) for column in zip(*pairs, strict=True))
            gain = median(two_clients / one_client for one_client, two_clients in pairs)
            table.add_row(url.partition(":")[0], work, f"{one:,.0f}", f"{two:,.0f}", f"{gain:.2f}")
    return table


def main() -> None:
    """Measure and print the table; with --client, run one client."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=40_000, help="jobs of all clients together (default: 40,000)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    parser.add_argument("--client", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        asyncio.run(run_client(options.client, options.jobs, options.number))
        return
    with private_servers() as (urls, servers):
        report.open_console().print(
            asyncio.run(measure(urls, jobs=options.jobs, rounds=options.rounds)), servers
        )


if __name__ == "__main__":
    main()
