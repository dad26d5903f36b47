"""What every program here tells, on one line of JSON: how long its jobs took, and what they cost.

`drain`: from the first call of the handler to the last. `answer`: each job carries when it was enqueued, on
the clock that all processes of a machine share, and is told in ms from there to its handler.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

VERB = sys.argv[1]
COUNT = int(sys.argv[2])
URL = os.environ.get("PEER_URL", "")
#: Seconds between two jobs of `ask`, so that each meets an idle worker.
PAUSE = 0.003


def now() -> int:
    """Return ns on the clock that all processes share."""
    return time.monotonic_ns()


class Tally:
    """Counts the handler's calls, and ends the process with what it found when all have come."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.first = 0.0
        self.cpu = 0.0
        self.seen = 0
        self.late: list[float] = []

    def job(self, sent: int) -> None:
        """Take one job, which was enqueued at `sent` ns."""
        if VERB == "answer":
            self.late.append((now() - sent) / 1e6)
        elif not self.seen:
            self.first, self.cpu = time.perf_counter(), time.process_time()
        self.seen += 1
        if self.seen == COUNT:
            self.tell()

    def tell(self) -> NoReturn:
        """Print what was found and leave at once: a peer's own shutdown is not what is measured."""
        if VERB == "answer":
            found: dict[str, Any] = {"ms": self.late}
        else:
            cpu = time.process_time() - self.cpu
            found = {"seconds": time.perf_counter() - self.first, "cpu_us": cpu * 1e6 / COUNT}
        # Not print: some peers take sys.stdout for their log.
        os.write(1, json.dumps(found).encode() + b"\n")
        os._exit(0)


def ready() -> None:
    """Say that the worker is about to wait for jobs."""
    print("ready", flush=True)


def spaced() -> Iterator[int]:
    """Yield when each job of `ask` is enqueued, a pause apart."""
    for _ in range(COUNT):
        time.sleep(PAUSE)
        yield now()


def told(work: Callable[[], object]) -> None:
    """Do `put`, and print how long it took."""
    begun = time.perf_counter()
    work()
    print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


def chunks(size: int) -> Iterator[Iterable[int]]:
    """Yield the numbers of all jobs in chunks."""
    for start in range(0, COUNT, size):
        yield range(start, min(start + size, COUNT))
