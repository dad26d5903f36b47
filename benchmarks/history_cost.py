"""What a history costs: `python -m benchmarks.history_cost [--runs N] [--level all] [--memory 2g]`.

A day is played on a private Redis (or was before, by benchmarks.history_day: --url says where), taken into a
warehouse by one increment, taken again with nothing new, and drawn; the day and the report in processes of
their own. Prints JSON: seconds by the clock and of CPU (of Java and all Pythons: what to read on a machine
that others use as well), events a second, and the most memory that each kind of process held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, TypeVar

import psutil
from msgspec import Struct
from msgspec.structs import asdict

from dibs.spark.history.increments import update
from dibs.spark.java import session
from dibs_conformance.servers import start_redis

T = TypeVar("T")

MIB: Final = 1 << 20
#: Kind of process -> what its command line has in it, the first that fits. Spark starts one daemon for its
#: workers, and one more for each question that it has about a data source.
KINDS: Final = {
    "planning": "pyspark.sql.worker.",
    "worker": "pyspark.daemon",
    "report": "dibs spark report",
    "day": "benchmarks.history_day",
}


class Took(Struct):
    """What something took, in seconds: by the clock, and of all cores by this process and its own."""

    seconds: float
    cpu: float


class Held(Struct):
    """The most that one kind of process held, in MiB; each of the three at its own moment."""

    largest: int = 0
    together: int = 0
    processes: int = 0


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
            if kind_of(process) != "server":
                told = process.cpu_times()
                total += told.user + told.system + told.children_user + told.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def kind_of(process: psutil.Process) -> str:
    """Return what a process does here."""
    if process.pid == os.getpid():
        return "driver"
    if process.name() == "java":
        return "java"
    words = " ".join(process.cmdline())
    for kind, word in KINDS.items():
        if word in words:
            return kind
    return "server"


@contextmanager
def watched() -> Iterator[dict[str, Held]]:
    """Give the most that each kind of process held, while it lasts."""
    most: dict[str, Held] = {}
    over = Event()

    def watch() -> None:
        while not over.wait(0.25):
            sizes: dict[str, list[int]] = {}
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    sizes.setdefault(kind_of(process), []).append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            for kind, each in sizes.items():
                held = most.setdefault(kind, Held())
                held.largest = max(held.largest, max(each) // MIB)
                held.together = max(held.together, sum(each) // MIB)
                held.processes = max(held.processes, len(each))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()
        most.pop("server", None)


def alone(*words: str) -> tuple[dict[str, Any], str]:
    """Run a Python with these words; return what it took and held, and what it printed."""
    begun, busy = time.monotonic(), ended()
    with watched() as most:
        said = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    took = Took(round(time.monotonic() - begun, 1), round(ended() - busy, 1))
    return {**asdict(took), "most_mib": {kind: asdict(most[kind]) for kind in most if kind != "driver"}}, said


def ended() -> float:
    """Return the CPU seconds of all processes that this one started and that are gone."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def measured(words: argparse.Namespace, url: str, warehouse: Path) -> dict[str, Any]:
    """Take in what was played at a place, and return what that took."""
    config = {"spark.driver.memory": words.memory, "spark.log.level": "ERROR"}
    spark = session("dibs benchmark", master="local[2]", config=config)
    with watched() as most:
        first, done = timed(lambda: update(spark, url, warehouse))
    with watched() as most_again:
        again, _ = timed(lambda: update(spark, url, warehouse))
    spark.stop()
    out = warehouse.with_name("report.html")
    drawn, _ = alone("-m", "dibs", "spark", "report", "--warehouse", str(warehouse), "--out", str(out))
    size = sum(file.stat().st_size for file in (warehouse / "current").resolve().rglob("*.parquet"))
    if words.report:
        shutil.copy(out, words.report)
    return {
        "events": done.events, "increment": asdict(first),
        "events_per_second": round(done.events / first.seconds),
        "events_per_cpu_second": round(done.events / first.cpu),
        "most_mib": {kind: asdict(held) for kind, held in most.items()},
        "empty_increment": asdict(again),
        "empty_most_mib": {kind: asdict(held) for kind, held in most_again.items()},
        "report": drawn, "page_kib": out.stat().st_size >> 10, "parquet_mib": size // MIB,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    """Play, take in, draw, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_cost", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=24, help="of the day; a short one is played faster")
    parser.add_argument("--level", choices=("runs", "all"), default="runs")
    parser.add_argument("--memory", default="2g", help="of the Java process")
    parser.add_argument("--url", help="where a day was played already; then nothing is played")
    parser.add_argument("--report", type=Path, help="where to keep the page that was drawn")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        if words.url:
            print(json.dumps(measured(words, words.url, folder / "warehouse")))
            return
        with start_redis() as server:
            url = f"{server.url}?prefix=day"
            day = ("--runs", str(words.runs), "--hours", str(words.hours), "--level", words.level)
            played, planted = alone("-m", "benchmarks.history_day", url, *day)
            told = {"runs": json.loads(planted)["runs"], "play": played}
            print(json.dumps({**told, **measured(words, url, folder / "warehouse")}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
