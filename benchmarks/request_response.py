"""How long a request waits for its response: `python -m benchmarks.request_response [--jobs N] [--rounds N]`.

On each storage, p50 and p99 of `task.enqueue_and_wait` as a caller sees it, alone and beside a hundred
others who wait for what does not come. The worker is idle and another process; in memory it can only be on
the caller's own loop.
The storages take turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final
from uuid import uuid4

from rich.table import Table

from benchmarks.servers import private_servers
from dibs import Dibs
from dibs.cli import output

#: Seconds between two requests, so that each meets an idle worker.
PAUSE: Final = 0.003
WARM_UP: Final = 20
#: Who waits beside the caller, in the second row of each storage.
OTHERS: Final = 100

app = Dibs()


@app.task(queue="answer")
async def answer(number: int) -> int:
    return number + 1


async def asked(url: str, jobs: int, others: int) -> list[float]:
    """Return the ms of each request, one after the other, while so many others wait in vain."""
    async with app.using(url), worker_here():
        never = await answer.enqueue_many([answer.options(delay=86_400).bind(n) for n in range(others)])
        waiting = [asyncio.create_task(ticket.result(None)) for ticket in never]
        try:
            return [await _asked(number) for number in range(WARM_UP + jobs)][WARM_UP:]
        finally:
            for wait in waiting:
                wait.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _asked(number: int) -> float:
    await asyncio.sleep(PAUSE)
    begun = time.perf_counter()
    if await answer.enqueue_and_wait(number) != number + 1:
        raise ValueError(f"{number} got another's answer")
    return (time.perf_counter() - begun) * 1000


@asynccontextmanager
async def worker_here() -> AsyncIterator[None]:
    """Have a worker on this loop for a block, where no other process could be one."""
    if app.storage.capabilities.shared:
        yield
        return
    work = asyncio.create_task(app.work())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@contextmanager
def worker_at(url: str) -> Iterator[None]:
    """Have a worker of its own process there for a block."""
    if url.startswith("memory:"):
        yield
        return
    words = [sys.executable, "-m", "dibs", "worker", "benchmarks.request_response:app", "--processes", "1"]
    environment = {**os.environ, "DIBS_URL": url}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def measured(url: str, jobs: int, others: int) -> list[float]:
    """Return the ms of each request at an empty place."""
    with worker_at(url):
        return asyncio.run(asked(url, jobs, others))


def row(storage: str, others: int, took: list[float]) -> dict[str, Any]:
    """Return what half of the requests took at most, and 99 in a hundred."""
    cuts = quantiles(took, n=100)
    return {"storage": storage, "others": others, "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def measure(urls: list[str], *, jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each storage, with and without others who wait."""
    took: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for others in (0, OTHERS):
            for url in urls:
                place = url.replace("PLACE", f"rr_{uuid4().hex[:12]}")
                took.setdefault((url.partition(":")[0], others), []).extend(measured(place, jobs, others))
    return [row(storage, others, ms) for (storage, others), ms in sorted(took.items())]


def main() -> None:
    """Measure, print."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.request_response", description=__doc__)
    words.add_argument("--jobs", type=int, default=300)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = words.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        servers, told = stack.enter_context(private_servers())
        found = measure(
            ["memory:PLACE", f"file:{folder}/PLACE", *servers], jobs=given.jobs, rounds=given.rounds
        )
    table = Table("storage", "others who wait", "p50 ms", "p99 ms", title="from request to response")
    for one in found:
        table.add_row(one["storage"], str(one["others"]), f"{one['p50_ms']:.2f}", f"{one['p99_ms']:.2f}")
    output.console().print(table, told)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
