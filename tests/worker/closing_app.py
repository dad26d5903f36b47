"""An application that writes to the file $CLOSING_LOG when its processes begin, close and exit."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from dibs.app import Dibs

app = Dibs()


def write_line(event: str) -> None:
    with Path(os.environ["CLOSING_LOG"]).open("a") as file:
        file.write(f"{event} {os.getpid()}\n")


def events(log: Path) -> dict[str, list[str]]:
    """Return the events of each process in the log, by process id; the first event is "opened"."""
    found: dict[str, list[str]] = {}
    for line in log.read_text().splitlines():
        event, pid = line.split()
        found.setdefault(pid, []).append(event)
    return found


@app.task(queue="pid")
def pid() -> int:
    return os.getpid()


@app.task(queue="isolated_pid", executor="process")
def isolated_pid() -> int:
    return os.getpid()


@app.task(queue="child")
def child() -> None:
    """Start a process that outlives the handler, like a ProcessPoolExecutor without a shutdown."""
    multiprocessing.Process(target=time.sleep, args=(3600,)).start()


@app.task(queue="overruns", timeout=0.1, max_timeouts=0)
def overruns() -> None:
    time.sleep(3600)


@app.lifespan
async def lifespan() -> AsyncIterator[None]:
    atexit.register(write_line, "exited")
    write_line("opened")
    yield
    how = os.environ.get("CLOSING", "")
    if how == "fails":
        raise ValueError("the pool is gone")
    # 0.3 s is far longer than a signal takes, so a process that is killed does not write "closed".
    await asyncio.sleep(3600 if how == "hangs" else 0.3)
    write_line("closed")
