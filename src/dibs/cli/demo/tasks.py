"""The application of the demo: a task that computes the SHA-256 of a file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from pathlib import Path
from typing import Final

from msgspec import Struct

from dibs import Dibs, Exponential, Failure, current_job


class Digest(Struct, frozen=True, gc=False):
    """A file as its job read it. The outcome of the job keeps it for ever."""

    size: int
    mtime_ns: int
    sha256: str


def compute_digest(path: str) -> Digest:
    """Read a file, and return its digest with its size and time of change when it was opened."""
    with Path(path).open("rb") as file:
        about = os.fstat(file.fileno())
        return Digest(about.st_size, about.st_mtime_ns, hashlib.file_digest(file, "sha256").hexdigest())


#: Pauses of 0.2, 0.4 and 0.8 s: short enough to see all retries during the demo.
BACKOFF: Final = Exponential(0.2, 1)
RETRIES: Final = 3

#: It has no URL: the demo sets DIBS_URL for this process and for its worker processes.
app = Dibs()


@app.task(queue="files", timeout=None, max_retries=RETRIES, backoff=BACKOFF)
def hash_file(path: str) -> Digest:
    """Return the digest of a file."""
    return compute_digest(path)


@app.task(queue="busy")
async def stay_busy(seconds: float) -> None:
    """Keep its id active for `seconds`, so that the demo can enqueue the same id during the run."""
    await asyncio.sleep(seconds)


@app.task(queue="missing", max_retries=RETRIES, backoff=BACKOFF)
def read_missing(path: str) -> Digest:
    """Raise FileNotFoundError in every run, because the demo passes a path that does not exist."""
    return compute_digest(path)


@read_missing.on_failure
def give_up_missing(failure: Failure) -> str:
    """Handle the failure of `read_missing`: return one line about it."""
    return f"{failure.id}: {failure.error.type} after {failure.attempts} runs"


@app.task(queue="killed", backoff=BACKOFF)
def kill_the_worker() -> int:
    """Kill this process in the first run. Return the number of the run, from the second run on."""
    attempt = current_job().attempt
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt
