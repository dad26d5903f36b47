"""How soon a fleet recovers: processes and supervisors are killed, and a handler overruns."""

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

from benchmarks.crew.handlers import TIMEOUT
from dibs import Dibs

#: A lease short enough to be waited for; recovery from the death of a supervisor is counted beyond it.
LEASE = 2.0
PATIENCE = 120.0

SUPERVISOR = """
import asyncio
from benchmarks.crew.handlers import app
from dibs.worker import run
if __name__ == "__main__":
    asyncio.run(run(app, queues={queues!r}, processes={processes}, lease={lease}, heartbeat=0.5, grace=0))
"""


class Note(NamedTuple):
    """One line of a handler: which process, and when."""

    pid: int
    at: float


def noted(file: Path, number: int) -> Note:
    """Wait for the n-th line."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) > number:
            pid, at = lines[number].split()
            return Note(int(pid), float(at))
        time.sleep(0.001)
    raise TimeoutError(f"{file.name} has no line {number} after {PATIENCE:g} s")


@contextmanager
def crew(
    folder: Path, url: str, queues: Sequence[str], *, supervisors: int, processes: int
) -> Iterator[list[int]]:
    """Let supervisors work at a place, yield their process ids, and kill them in the end."""
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


def put(url: str, queue: str, file: Path) -> None:
    """Enqueue a call with the file that it is to note itself in."""
    with Dibs(url).sync as place:
        place.queue(queue).enqueue({"args": [str(file)]})


def after_sigkill(folder: Path, url: str, whom: str) -> float:
    """Return the seconds from SIGKILL of a process, or of its supervisor, until its job runs again.

    Each kill meets a new crew: one that is killed again and again replaces processes more slowly.
    """
    file = folder / "victim"
    put(url, "victim", file)
    with crew(folder, url, ["victim"], supervisors=2, processes=2) as supervisors:
        first = noted(file, 0)
        above = {each.pid for each in psutil.Process(first.pid).parents()}
        [supervisor] = above & set(supervisors)
        killed = time.monotonic()
        os.kill(first.pid if whom == "process" else supervisor, signal.SIGKILL)
        return noted(file, 1).at - killed


def after_timeout(folder: Path, url: str) -> float:
    """Return the seconds from the timeout of a `def` handler until the replacement runs its first job."""
    late, next_ = folder / "late", folder / "next"
    put(url, "overruns", late)
    with crew(folder, url, ["overruns", "behind"], supervisors=1, processes=1):
        begun = noted(late, 0)
        put(url, "behind", next_)
        return noted(next_, 0).at - begun.at - TIMEOUT


def told(figure: str, seconds: Sequence[float]) -> dict[str, object]:
    """Return the row of a figure that was measured several times."""
    return {
        "figure": figure, "of": len(seconds),
        "p50_s": round(statistics.median(seconds), 3), "max_s": round(max(seconds), 3),
    }  # fmt: skip
