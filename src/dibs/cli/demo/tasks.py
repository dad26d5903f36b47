"""The application of the demo: what its worker processes import and run."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from dibs import Dibs, Exponential, Failure, current_job
from dibs.cli.demo.digest import Digest, read

#: Short, so that a retry is seen within the demo: 0.2, 0.4 and 0.8 s.
BACKOFF: Final = Exponential(0.2, 1)
RETRIES: Final = 3

#: Without a URL: the demo puts it into DIBS_URL, for itself and for its worker processes.
app = Dibs()


@app.task(queue="files", timeout=None, max_retries=RETRIES, backoff=BACKOFF)
def hash_file(path: str) -> Digest:
    """Read one file."""
    return read(path)


@hash_file.on_failure
def give_up(failure: Failure) -> str:
    """What an application does when a job failed for good: here, one line."""
    return f"{failure.id}: {failure.error.type} after {failure.attempts} runs"


@app.task(queue="busy")
async def stay_busy(seconds: float) -> None:
    """Keep an id active for a while, so that a duplicate meets it there."""
    await asyncio.sleep(seconds)


@app.task(queue="missing", max_retries=RETRIES, backoff=BACKOFF)
def read_missing(path: str) -> Digest:
    """Read a file that is not there."""
    return read(path)


@read_missing.on_failure
def give_up_missing(failure: Failure) -> str:
    """The same, for the file that is not there."""
    return f"{failure.id}: {failure.error.type} after {failure.attempts} runs"


@app.task(queue="killed", backoff=BACKOFF)
def kill_the_worker() -> int:
    """Kill the process that runs this, the first time; return which run it was that came through."""
    attempt = current_job().attempt
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt
