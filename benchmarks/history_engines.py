"""Compare the engines of the history: `python -m benchmarks.history_engines [--events N] [--engine spark]`.

Each engine reads the same runs from a private Redis into a warehouse of its own: a first increment of N
events, and nine increments of N/100 events each. The last increment is measured once more in a new process,
as a cron job starts it. Prints a JSON object for each engine: elapsed and CPU seconds, the memory of all
processes together in MiB, and the size of the tables. On a shared machine compare CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from attrs import asdict

from benchmarks.history_cost import MIB, PeakMemory, run_python, timed, watch_memory
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.spark.history.increments import update
from dibs.spark.java import session
from dibs.storage.registry import open_storage
from dibs_conformance.servers import start_redis

#: Jobs of one call; the most that a call accepts.
BATCH: Final = 1000
QUEUES: Final = ("mail", "images")
#: 2026-11-20 09:00 UTC, and the ms between two batches of runs.
BEGIN: Final = 1_795_251_600_000
STEP_MS: Final = 5_000


async def add_runs(url: str, first: int, runs: int) -> None:
    """Run jobs in batches, each with an id of its own: enqueued, claimed and completed."""
    async with open_storage(url, clock="manual") as storage:
        for queue in QUEUES:
            keep = SettingsPatch(log_age=10**12, log_bytes=2**40)
            await storage.configure(queue, keep, now=BEGIN)
        for begin in range(first, first + runs, BATCH):
            number = begin // BATCH
            queue, now = QUEUES[number % len(QUEUES)], BEGIN + number * STEP_MS
            ids = [f"job-{each}" for each in range(begin, min(begin + BATCH, first + runs))]
            await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=now)
            lease = (await storage.grant([queue], 240_000, "worker", now=now + 1000)).lease
            claimed = await storage.claim(queue, lease, len(ids), now=now + 1000)
            ends = [
                Settlement(id=job.id, fence=job.run.fence, action=Complete())
                for job in claimed.jobs
                if job.run
            ]
            await storage.settle(queue, ends, now=now + 3000)


def measure(engine: str, events: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one engine, with a Redis of its own."""
    warehouse, small = folder / engine, max(events // 100, 1)
    start = tenth = None
    tenth_peaks: dict[str, PeakMemory] = {}
    with start_redis() as server:
        url = f"{server.url}?prefix=engines"
        asyncio.run(add_runs(url, 0, events))
        if engine == "spark":
            config = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
            start, _ = timed(lambda: session("dibs benchmark", master="local[2]", config=config))
        with watch_memory() as first_peaks:
            first, done = timed(lambda: update(url, warehouse, engine=engine))  # type: ignore[arg-type]
        assert events == done.events
        for number in range(9):
            asyncio.run(add_runs(url, events + number * small, small))
            with watch_memory() as tenth_peaks:
                tenth, _ = timed(lambda: update(url, warehouse, engine=engine))  # type: ignore[arg-type]
        if engine == "spark":
            session().stop()
        asyncio.run(add_runs(url, events + 9 * small, small))
        arguments = ("--url", url, "--warehouse", str(warehouse), "--engine", engine)
        cron, _ = run_python("-m", "dibs", "spark", "history", *arguments)
    size = sum(file.stat().st_size for file in warehouse.rglob("*.parquet"))
    return {
        "engine": engine, "events": events, "small": small,
        "start": start and asdict(start),
        "first": asdict(first), "first_mib": sum(peak.together for peak in first_peaks.values()),
        "tenth": tenth and asdict(tenth), "tenth_mib": sum(peak.together for peak in tenth_peaks.values()),
        "cron": cron, "parquet_mib": round(size / MIB, 1),
    }  # fmt: skip


def main() -> None:
    """Measure each engine in a process of its own, and print the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_engines", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="events of the first increment")
    parser.add_argument("--engine", choices=("duckdb", "spark"), help="measure only this engine")
    options = parser.parse_args()
    if options.engine is None:
        for engine in ("duckdb", "spark"):
            command = [
                "-m",
                "benchmarks.history_engines",
                "--events",
                str(options.events),
                "--engine",
                engine,
            ]
            subprocess.run([sys.executable, *command], check=True)
        return
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        print(json.dumps(measure(options.engine, options.events, folder)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
