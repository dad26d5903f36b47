"""Recovery times: seconds until a job runs again after a kill of its process or supervisor, or a timeout."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.fleet.handlers import TIMEOUT
from dibs import Dibs

#: Seconds. Short, because a job of a killed supervisor waits until its lease has expired.
LEASE = 2.0
#: Seconds until a job must have started.
START_TIMEOUT = 120.0

SUPERVISOR = """
import asyncio
from benchmarks.fleet.handlers import app
from dibs.worker import run
if __name__ == "__main__":
    asyncio.run(run(app, queues={queues!r}, processes={processes}, lease={lease}, heartbeat=0.5, grace=0))
"""


class RunStart(NamedTuple):
    """The start of a run: the process id, and the time on the monotonic clock."""

    pid: int
    at: float


def wait_for_run(file: Path, index: int) -> RunStart:
    """Wait until the handler has written line `index`, counted from 0, and return it."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) > index:
            pid, at = lines[index].split()
            return RunStart(int(pid), float(at))
        time.sleep(0.001)
    raise TimeoutError(f"{file.name} has no line {index} after {START_TIMEOUT:g} s")


@contextmanager
def start_supervisors(
    folder: Path, url: str, queues: Sequence[str], *, supervisors: int, processes: int
) -> Iterator[list[int]]:
    """Start supervisors and yield their process ids; kill the supervisors at the end of the block."""
    script = folder / "supervisor.py"
    script.write_text(SUPERVISOR.format(queues=list(queues), processes=processes, lease=LEASE))
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "DIBS_URL": url}
    started = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
        for _ in range(supervisors)
    ]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()


def enqueue(url: str, queue: str, file: Path) -> None:
    """Enqueue a job whose handler writes its start to `file`."""
    with Dibs(url).sync as app:
        app.queue(queue).enqueue({"args": [str(file)]})


def after_sigkill(folder: Path, url: str, victim: str) -> float:
    """Return the seconds from SIGKILL until the job runs again. `victim` is "process" or "supervisor".

    Each kill uses new supervisors, because a supervisor replaces processes more slowly after several kills.
    """
    file = folder / "victim"
    enqueue(url, "victim", file)
    with start_supervisors(folder, url, ["victim"], supervisors=2, processes=2) as supervisors:
        first = wait_for_run(file, 0)
        parents = {each.pid for each in psutil.Process(first.pid).parents()}
        [supervisor] = parents & set(supervisors)
        killed_at = time.monotonic()
        os.kill(first.pid if victim == "process" else supervisor, signal.SIGKILL)
        return wait_for_run(file, 1).at - killed_at


def after_timeout(folder: Path, url: str) -> float:
    """Return the seconds from the timeout of a `def` handler until the replacement process runs a job."""
    late, next_ = folder / "late", folder / "next"
    enqueue(url, "overruns", late)
    with start_supervisors(folder, url, ["overruns", "behind"], supervisors=1, processes=1):
        started = wait_for_run(late, 0)
        enqueue(url, "behind", next_)
        return wait_for_run(next_, 0).at - started.at - TIMEOUT


def row(figure: str, seconds: Sequence[float]) -> dict[str, object]:
    """Return the median and the maximum of several measurements."""
    return {
        "figure": figure, "of": len(seconds),
        "p50_s": round(statistics.median(seconds), 3), "max_s": round(max(seconds), 3),
    }  # fmt: skip
