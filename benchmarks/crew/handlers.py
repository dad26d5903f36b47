"""The handlers of the measured fleets. Worker processes import them by name."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from dibs import Dibs
from dibs.model.retry import Immediate

#: The place is in DIBS_URL.
app = Dibs()
#: How many queues an idle fleet has.
IDLE = 50
#: Seconds that `overruns` may take.
TIMEOUT = 0.5


@app.task(queue="noop", size=1)
async def noop() -> None: ...


@app.task(queue="noop_sync", size=1)
def noop_sync() -> None: ...


@app.task(queue="ten_ms", size=1)
async def ten_ms() -> None:
    await asyncio.sleep(0.01)


@app.task(queue="ten_ms_sync", size=1)
def ten_ms_sync() -> None:
    time.sleep(0.01)


@app.task(queue="one_ms_cpu")
async def one_ms_cpu() -> None:
    """Take 1 ms of CPU, however long that takes on a busy machine."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass


@app.task(queue="steady")
async def steady() -> None:
    """Ten at once in a process, so that the CPU is not what holds it up."""
    await asyncio.sleep(0.01)


@app.task(queue="poison")
def poison() -> None:
    os._exit(7)


@app.task(queue="poison_alone", executor="process")
def poison_alone() -> None:
    os._exit(7)


@app.task(queue="victim", timeout=None, max_stalls=None, backoff=Immediate())
async def victim(file: str) -> None:
    """Say who and when, and stay."""
    note(file)
    await asyncio.Event().wait()


@app.task(queue="overruns", timeout=TIMEOUT, max_timeouts=0, size=100, queue_priority=200)
def overruns(file: str) -> None:
    """Fill the process, and go on after the timeout."""
    note(file)
    time.sleep(3600)


@app.task(queue="behind", size=100)
def behind(file: str) -> None:
    """What only a replacement has room for."""
    note(file)


async def idle() -> None: ...


for number in range(IDLE):
    app.task(queue=f"idle{number}")(idle)


def note(file: str) -> None:
    """Add a line: which process, and when."""
    with Path(file).open("a") as out:
        out.write(f"{os.getpid()} {time.monotonic()}\n")
