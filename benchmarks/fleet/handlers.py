"""The handlers that `benchmarks.fleet` measures. Worker processes import this module by its name."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from dibs import Dibs
from dibs.model.retry import Immediate

#: The URL of the storage is in DIBS_URL.
app = Dibs()
#: Queues of the idle measurement.
IDLE_QUEUES = 50
#: Timeout of `overruns` in seconds.
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
    """Use 1 ms of CPU time."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass


@app.task(queue="steady")
async def steady() -> None:
    """Sleep 10 ms. A process runs ten of these at once, so the CPU is not the bottleneck."""
    await asyncio.sleep(0.01)


@app.task(queue="poison")
def poison() -> None:
    os._exit(7)


@app.task(queue="poison_alone", executor="process")
def poison_alone() -> None:
    os._exit(7)


@app.task(queue="victim", timeout=None, max_stalls=None, backoff=Immediate())
async def victim(file: str) -> None:
    """Write the start to `file`, then wait until the process is killed."""
    write_start(file)
    await asyncio.Event().wait()


@app.task(queue="overruns", timeout=TIMEOUT, max_timeouts=0, size=100, queue_priority=200)
def overruns(file: str) -> None:
    """Use the whole capacity of the process, and run past the timeout."""
    write_start(file)
    time.sleep(3600)


@app.task(queue="behind", size=100)
def behind(file: str) -> None:
    """Write the start to `file`. Only a process without a run of `overruns` has the capacity."""
    write_start(file)


async def idle() -> None: ...


for number in range(IDLE_QUEUES):
    app.task(queue=f"idle{number}")(idle)


def write_start(file: str) -> None:
    """Append the process id and the time on the monotonic clock to `file`."""
    with Path(file).open("a") as out:
        out.write(f"{os.getpid()} {time.monotonic()}\n")
