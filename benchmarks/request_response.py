"""Measure the time from request to response: `python -m benchmarks.request_response [--jobs N] [--rounds N]`.

On each storage, p50 and p99 of `task.enqueue_and_wait` in ms, first alone and then with a hundred concurrent
callers whose jobs start the next day. The worker is idle and runs in another process; in memory it runs on
the event loop of the caller. Each round measures all storages.
"""

from __future__ import annotations

import argparse
import asyncio
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

from benchmarks import report
from benchmarks.storages import private_servers
from dibs import Dibs

#: Seconds between two requests. The worker is idle again before each.
PAUSE: Final = 0.003
WARM_UP: Final = 20
#: Other waiting callers in the second row of each storage.
OTHER_CALLERS: Final = 100

app = Dibs()


@app.task(queue="answer")
async def answer(number: int) -> int:
    return number + 1


async def request_times(url: str, jobs: int, others: int) -> list[float]:
    """Return the ms of sequential requests, while `others` callers wait for jobs of the next day."""
    async with app.using(url), worker_on_this_loop():
        tickets = await answer.enqueue_many([answer.options(delay=86_400).bind(n) for n in range(others)])
        waiting = [asyncio.create_task(ticket.result(None)) for ticket in tickets]
        try:
            return [await _request_ms(number) for number in range(WARM_UP + jobs)][WARM_UP:]
        finally:
            for wait in waiting:
                wait.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _request_ms(number: int) -> float:
    await asyncio.sleep(PAUSE)
    started = time.perf_counter()
    if await answer.enqueue_and_wait(number) != number + 1:
        raise ValueError(f"the response to {number} is not {number + 1}")
    return (time.perf_counter() - started) * 1000


@asynccontextmanager
async def worker_on_this_loop() -> AsyncIterator[None]:
    """Run a worker on this event loop for a block, if the storage is not shared with other processes."""
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
def worker_process(url: str) -> Iterator[None]:
    """Run a worker process on this storage for a block, except in memory."""
    if url.startswith("memory:"):
        yield
        return
    command = [sys.executable, "-m", "dibs", "worker", "benchmarks.request_response:app", "--processes", "1"]
    environment = {**os.environ, "DIBS_URL": url}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def measure_storage(url: str, jobs: int, others: int) -> list[float]:
    """Return the ms of each request on an empty storage."""
    with worker_process(url):
        return asyncio.run(request_times(url, jobs, others))


def row(storage: str, others: int, times: list[float]) -> dict[str, Any]:
    """Return the row of a storage, with p50 and p99 of the times in ms."""
    percentiles = quantiles(times, n=100)
    return {
        "storage": storage,
        "others": others,
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
    }


def measure(urls: list[str], *, jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each storage, without and with other waiting callers."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for others in (0, OTHER_CALLERS):
            for url in urls:
                new_url = url.replace("NAME", f"rr_{uuid4().hex[:12]}")
                measured = measure_storage(new_url, jobs, others)
                times.setdefault((url.partition(":")[0], others), []).extend(measured)
    return [row(storage, others, ms) for (storage, others), ms in sorted(times.items())]


def main() -> None:
    """Measure all storages and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.request_response", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300, help="requests in each measurement (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        servers, description = stack.enter_context(private_servers())
        urls = ["memory:NAME", f"file:{folder}/NAME", *servers]
        rows = measure(urls, jobs=options.jobs, rounds=options.rounds)
    table = Table("storage", "other callers", "p50 ms", "p99 ms", title="from request to response")
    for one in rows:
        table.add_row(one["storage"], str(one["others"]), f"{one['p50_ms']:.2f}", f"{one['p99_ms']:.2f}")
    report.open_console().print(table, description)
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
