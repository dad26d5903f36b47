"""What a history costs: `python -m benchmarks.history_cost [--runs N] [--level all] [--memory 2g]`.

A day is played on a private Redis, taken into a warehouse by one increment, taken again with nothing new, and
drawn. Prints JSON: seconds by the clock and of CPU (of Java and all Pythons: what to read on a machine that
others use as well), events a second, and the most memory that Java and all Pythons held, in MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

import psutil
from msgspec import Struct
from msgspec.structs import asdict

from benchmarks.history_day import play
from dibs.spark.history.increments import update
from dibs.spark.java import session
from dibs.spark.report.page import page
from dibs.spark.report.summary import report
from dibs_conformance.servers import start_redis

T = TypeVar("T")


class Took(Struct):
    """What something took, in seconds: by the clock, and of all cores by this process and its own."""

    seconds: float
    cpu: float


def timed(work: Callable[[], T]) -> tuple[Took, T]:
    """Return what it took, and what it returned."""
    begun, busy = time.monotonic(), cpu()
    done = work()
    return Took(round(time.monotonic() - begun, 1), round(cpu() - busy, 1)), done


def cpu() -> float:
    """Return the CPU seconds of this process and of those it started, but for a server of its own."""
    times = psutil.Process().cpu_times()
    total = float(times.user + times.system)
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() in ("java", "python", "python3"):
                told = process.cpu_times()
                total += told.user + told.system + told.children_user + told.children_system
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """Give the most MiB that the Java and the Python processes held together, while it lasts."""
    most: dict[str, int] = {"java": 0, "python": 0}
    over = Event()

    def watch() -> None:
        while not over.wait(0.25):
            held = {"java": 0, "python": 0}
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    name = "java" if process.name() == "java" else "python"
                    held[name] += process.memory_info().rss >> 20
                except psutil.NoSuchProcess:
                    continue
            for name, size in held.items():
                most[name] = max(most[name], size)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def main() -> None:
    """Play, take in, draw, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_cost", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=24, help="of the day; a short one is played faster")
    parser.add_argument("--level", choices=("runs", "all"), default="runs")
    parser.add_argument("--memory", default="2g", help="of the Java process")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    warehouse = folder / "warehouse"
    config = {"spark.driver.memory": words.memory, "spark.log.level": "ERROR"}
    try:
        with start_redis() as server:
            url = f"{server.url}?prefix=day"
            day = play(url, runs=words.runs, hours=words.hours, level=words.level)
            played, planted = timed(lambda: asyncio.run(day))
            spark = session("dibs benchmark", master="local[2]", config=config)
            with watched() as most:
                first, done = timed(lambda: update(spark, url, warehouse))
            again, _ = timed(lambda: update(spark, url, warehouse))
        drawn, text = timed(lambda: page(*report(warehouse)))
        size = sum(file.stat().st_size for file in (warehouse / "current").resolve().rglob("*.parquet"))
        print(
            json.dumps(
                {
                    "runs": planted.runs, "events": done.events, "play": asdict(played),
                    "increment": asdict(first), "events_per_second": round(done.events / first.seconds),
                    "events_per_cpu_second": round(done.events / first.cpu),
                    "empty_increment": asdict(again), "report": asdict(drawn), "page_kib": len(text) >> 10,
                    "parquet_mib": size >> 20, "most_mib": most, "load": round(os.getloadavg()[0], 1),
                }
            )
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
