"""Measure the time from enqueue to result: `python -m benchmarks.round_trip [URL ...] [--servers] [--jobs
N]`.

One job after another through the client API. The worker is idle and runs on the same event loop. A round trip
waits for three writes (enqueue, claim, settle) and one read of the storage. The baseline is one call of the
same server, see benchmarks.baselines. On a shared machine compare the ratio, and the p10, which is a
time without other load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import ExitStack
from statistics import quantiles
from typing import Any, Final

from benchmarks import baselines
from benchmarks.__main__ import kind_of
from benchmarks.client_calls import WARM_UP, round_trips
from benchmarks.storages import empty_storage, private_servers

#: Calls of the baseline in each round.
BASELINE_CALLS: Final = 200


async def measure(url: str, jobs: int, rounds: int) -> dict[str, Any]:
    """Return p10, p50 and p99 in ms, the ms of a baseline call, the ratio of p50 to it, and CPU ms a job."""
    times: list[float] = []
    baseline: list[float] = []
    cpu = 0.0
    for _ in range(rounds):
        rate = await baselines.measure(kind_of(url), url, "put, 1", BASELINE_CALLS)
        baseline += [1000 / rate] if rate else []
        async with empty_storage(url) as storage:
            started = time.process_time()
            times += await round_trips(storage, jobs)
            cpu += time.process_time() - started
    percentiles = quantiles(times, n=100)
    call_ms = sorted(baseline)[len(baseline) // 2] if baseline else None
    return {
        "storage": kind_of(url),
        "p10_ms": round(percentiles[9], 2),
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
        "baseline_ms": round(call_ms, 3) if call_ms else None,
        "ratio": round(percentiles[49] / call_ms, 1) if call_ms else None,
        "cpu_ms": round(cpu * 1000 / rounds / (jobs + WARM_UP), 2),
    }


async def measure_all(urls: list[str], jobs: int, rounds: int) -> None:
    """Print a line of JSON for each storage."""
    for url in urls:
        print(json.dumps(await measure(url, jobs, rounds)), flush=True)


def main() -> None:
    """Measure all storages and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round_trip", description=__doc__)
    parser.add_argument("urls", nargs="*", default=["memory:"], help="storages (default: memory:)")
    parser.add_argument(
        "--servers", action="store_true", help="start a Redis and a Postgres and measure them, too"
    )
    parser.add_argument("--jobs", type=int, default=300, help="jobs in each round (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    options = parser.parse_args()
    with ExitStack() as stack:
        urls, servers = stack.enter_context(private_servers()) if options.servers else ([], "")
        asyncio.run(measure_all([*options.urls, *urls], options.jobs, options.rounds))
        print(servers)


if __name__ == "__main__":
    main()
