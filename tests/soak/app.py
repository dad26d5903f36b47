"""The application of a soak. Its handlers write the begin and the end of each run to the journal."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dibs import Dibs, Fixed, Rate, current_job
from tests.soak.journal import Journal, soak_folder
from tests.soak.limits import LIMITED

#: Seconds between two ticks of the periodic task.
TICK_SECONDS = 1.0

app = Dibs()
journal = Journal("runs")
chdirs = Journal("chdirs")


@contextmanager
def recorded_run(*, fails: bool = False) -> Iterator[None]:
    """Write the run to the journal. With `fails`, its first attempt raises an error."""
    job = current_job()
    run = {"queue": job.queue, "id": job.id, "fence": job.fence, "pid": os.getpid()}
    journal.write(**run, step="begin", at=time.time())
    if random.random() < 0.02:
        change_directory()
    yield
    if fails and job.attempt == 1:
        raise RuntimeError("the first attempt fails")
    journal.write(**run, step="end", at=time.time())


def change_directory() -> None:
    """Change the working directory of this process to a new folder, which in half of the cases is removed."""
    folder = tempfile.mkdtemp(dir=soak_folder() / "elsewhere")
    os.chdir(folder)
    if random.random() < 0.5:
        Path(folder).rmdir()
    chdirs.write(pid=os.getpid(), at=time.time())


def nap_seconds() -> float:
    """Return up to 0.2 s, and for one run of twenty up to 3 s."""
    return random.uniform(0, 3 if random.random() < 0.05 else 0.2)


@app.task(queue="async", max_stalls=None, max_retries=None, backoff=Fixed(0.2))
async def nap_async(*, fails: bool) -> None:
    with recorded_run(fails=fails):
        await asyncio.sleep(nap_seconds())


@app.task(queue="thread", max_stalls=None, max_retries=None, backoff=Fixed(0.2))
def nap_on_thread(*, fails: bool) -> None:
    with recorded_run(fails=fails):
        time.sleep(nap_seconds())


@app.task(queue="process", executor="process", max_stalls=None, max_retries=None, backoff=Fixed(0.2))
def nap_in_process(*, fails: bool) -> None:
    with recorded_run(fails=fails):
        time.sleep(nap_seconds())


RATE = LIMITED["limited"]


@app.task(
    queue="limited",
    key="key",
    per_key=1,
    rate=Rate(*RATE.rate),
    key_rate=Rate(*RATE.key_rate),
    max_stalls=None,
    max_retries=None,
    backoff=Fixed(0.2),
)
async def nap_limited(*, key: str, fails: bool) -> None:
    with recorded_run(fails=fails):
        await asyncio.sleep(random.uniform(0, 0.1))


@app.task(queue="tick", every=TICK_SECONDS, max_stalls=None, max_retries=None)
async def tick() -> None:
    with recorded_run():
        await asyncio.sleep(0)


#: The queues to which the producers enqueue.
QUEUES = ("async", "thread", "process", "limited")
