"""Measure the history on Spark: `python -m benchmarks.history_cost [--runs N] [--level all] [--memory 2g]`.

benchmarks.history_day simulates a day on a private Redis, or --url names a storage with such a day. One
increment copies the events into a warehouse, a second increment finds no new events, and a report is drawn.
The simulation and the report run in new processes. Prints JSON: elapsed seconds, CPU seconds of Java and all
Python processes (compare these on a shared machine), events a second, and the peak memory of each kind of
process.
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
from attrs import asdict, define, frozen

from dibs.spark.history.increments import update
from dibs.spark.java import session
from dibs_conformance.servers import start_redis

T = TypeVar("T")

MIB: Final = 1 << 20
#: Kind of process -> a part of its command line; the first match counts. Spark starts one daemon for its
#: workers, and one for each call of a data source while it plans a query.
KINDS: Final = {
    "planning": "pyspark.sql.worker.",
    "worker": "pyspark.daemon",
    "report": "dibs spark report",
    "day": "benchmarks.history_day",
}


@frozen
class TimeUsed:
    """Elapsed seconds, and CPU seconds of this process and its child processes on all cores."""

    seconds: float
    cpu: float


@define
class PeakMemory:
    """The peak resident memory of one kind of process. The three peaks can be at different times."""

    #: The largest process, in MiB.
    largest: int = 0
    #: All processes of this kind together, in MiB.
    together: int = 0
    #: The number of processes.
    processes: int = 0


def timed(work: Callable[[], T]) -> tuple[TimeUsed, T]:
    """Call `work`. Return the time it used, and its result."""
    started, cpu_before = time.monotonic(), cpu_seconds()
    result = work()
    used = TimeUsed(round(time.monotonic() - started, 1), round(cpu_seconds() - cpu_before, 1))
    return used, result


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, without the Redis server."""
    times = psutil.Process().cpu_times()
    total = float(times.user + times.system)
    for process in psutil.Process().children(recursive=True):
        try:
            if kind_of(process) != "server":
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def kind_of(process: psutil.Process) -> str:
    """Return the kind of a process: driver, java, a key of `KINDS`, or server."""
    if process.pid == os.getpid():
        return "driver"
    if process.name() == "java":
        return "java"
    command_line = " ".join(process.cmdline())
    for kind, part in KINDS.items():
        if part in command_line:
            return kind
    return "server"


@contextmanager
def watch_memory() -> Iterator[dict[str, PeakMemory]]:
    """Yield the peak memory by kind of process; a thread updates it four times a second during the block."""
    peaks: dict[str, PeakMemory] = {}
    stopped = Event()

    def watch() -> None:
        while not stopped.wait(0.25):
            sizes: dict[str, list[int]] = {}
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    sizes.setdefault(kind_of(process), []).append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            for kind, each in sizes.items():
                peak = peaks.setdefault(kind, PeakMemory())
                peak.largest = max(peak.largest, max(each) // MIB)
                peak.together = max(peak.together, sum(each) // MIB)
                peak.processes = max(peak.processes, len(each))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        stopped.set()
        watcher.join()
        peaks.pop("server", None)


def run_python(*arguments: str) -> tuple[dict[str, Any], str]:
    """Run Python in a new process. Return its time and peak memory, and its stdout."""
    started, cpu_before = time.monotonic(), ended_cpu_seconds()
    with watch_memory() as peaks:
        command = [sys.executable, *arguments]
        stdout = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    used = TimeUsed(round(time.monotonic() - started, 1), round(ended_cpu_seconds() - cpu_before, 1))
    memory = {kind: asdict(peaks[kind]) for kind in peaks if kind != "driver"}
    return {**asdict(used), "most_mib": memory}, stdout


def ended_cpu_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def measure(options: argparse.Namespace, url: str, warehouse: Path) -> dict[str, Any]:
    """Copy the events of a storage into a warehouse, draw the report, and return times and memory."""
    config = {"spark.driver.memory": options.memory, "spark.log.level": "ERROR"}
    spark = session("dibs benchmark", master="local[2]", config=config)
    with watch_memory() as peaks:
        first, increment = timed(lambda: update(url, warehouse, engine="spark"))
    with watch_memory() as peaks_again:
        again, _ = timed(lambda: update(url, warehouse, engine="spark"))
    spark.stop()
    out = warehouse.with_name("report.html")
    drawn, _ = run_python("-m", "dibs", "spark", "report", "--warehouse", str(warehouse), "--out", str(out))
    size = sum(file.stat().st_size for file in warehouse.rglob("*.parquet"))
    if options.report:
        shutil.copy(out, options.report)
    return {
        "events": increment.events, "increment": asdict(first),
        "events_per_second": round(increment.events / first.seconds),
        "events_per_cpu_second": round(increment.events / first.cpu),
        "most_mib": {kind: asdict(peak) for kind, peak in peaks.items()},
        "empty_increment": asdict(again),
        "empty_most_mib": {kind: asdict(peak) for kind, peak in peaks_again.items()},
        "report": drawn, "page_kib": out.stat().st_size >> 10, "parquet_mib": size // MIB,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    """Simulate a day if --url is missing, measure, and print the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_cost", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=1_000_000, help="jobs of the day, about (default: 1,000,000)"
    )
    parser.add_argument("--hours", type=float, default=24, help="length of the day (default: 24)")
    parser.add_argument("--level", choices=("runs", "all"), default="runs", help="log level of the queues")
    parser.add_argument("--memory", default="2g", help="memory of the Java process (default: 2g)")
    parser.add_argument("--url", help="a storage with a simulated day; no day is simulated then")
    parser.add_argument("--report", type=Path, help="copy the report to this file")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        if options.url:
            print(json.dumps(measure(options, options.url, folder / "warehouse")))
            return
        with start_redis() as server:
            url = f"{server.url}?prefix=day"
            day = ("--runs", str(options.runs), "--hours", str(options.hours), "--level", options.level)
            play, findings = run_python("-m", "benchmarks.history_day", url, *day)
            about = {"runs": json.loads(findings)["runs"], "play": play}
            print(json.dumps({**about, **measure(options, url, folder / "warehouse")}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
