"""The common part of the Python programs: steps, counting of jobs, and results as one line of JSON.

Command line: `PROGRAM STEP COUNT`, with the URL of the server or the folder in PEER_URL. Each step works on
COUNT jobs:

    prepare   create tables
    enqueue   enqueue all jobs; prints the seconds
    drain     run all jobs; prints the seconds from the first call of the handler to the last, and the CPU a
    job send      enqueue one job every 3 ms for `receive`; the job carries its time of enqueueing receive
    run the jobs of `send`; prints for each the ms from the enqueue to the handler
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

STEP = sys.argv[1]
COUNT = int(sys.argv[2])
URL = os.environ.get("PEER_URL", "")
#: Seconds between two jobs of `send`. The worker is idle again before each job.
PAUSE = 0.003


def now() -> int:
    """Return ns on the monotonic clock, which all processes of a machine share."""
    return time.monotonic_ns()


class JobCounter:
    """Counts the calls of the handler. The last call prints the result and ends the process."""

    def __init__(self) -> None:
        self.started = 0.0
        self.cpu_at_start = 0.0
        self.calls = 0
        self.latencies_ms: list[float] = []

    def count(self, sent: int) -> None:
        """Count one job. In step `receive`, `sent` is the time of its enqueue in ns."""
        if STEP == "receive":
            self.latencies_ms.append((now() - sent) / 1e6)
        elif not self.calls:
            self.started, self.cpu_at_start = time.perf_counter(), time.process_time()
        self.calls += 1
        if self.calls == COUNT:
            self.finish()

    def finish(self) -> NoReturn:
        """Print the result and exit at once, so that the time of a peer's shutdown does not count."""
        if STEP == "receive":
            result: dict[str, Any] = {"ms": self.latencies_ms}
        else:
            cpu = time.process_time() - self.cpu_at_start
            result = {"seconds": time.perf_counter() - self.started, "cpu_us": cpu * 1e6 / COUNT}
        # Not print: some peers redirect sys.stdout to their log.
        os.write(1, json.dumps(result).encode() + b"\n")
        os._exit(0)


def ready() -> None:
    """Print that the worker starts to wait for jobs."""
    print("ready", flush=True)


def send_times() -> Iterator[int]:
    """Yield the current time in ns for each job of `send`, after a pause."""
    for _ in range(COUNT):
        time.sleep(PAUSE)
        yield now()


def time_enqueue(enqueue_all: Callable[[], object]) -> None:
    """Enqueue all jobs, and print the seconds."""
    started = time.perf_counter()
    enqueue_all()
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def chunks(size: int) -> Iterator[Iterable[int]]:
    """Yield the numbers of all jobs in ranges of `size`."""
    for start in range(0, COUNT, size):
        yield range(start, min(start + size, COUNT))
