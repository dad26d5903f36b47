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

#: Bytes of one read, 1 MiB.
CHUNK_SIZE = 1 << 20


class Digest(Struct, frozen=True, gc=False):
    """The content of a file as its job read it. The outcome of the job keeps it for ever."""

    size: int
    mtime_ns: int
    lines: int
    sha256: str


def compute_digest(path: str) -> Digest:
    """Read a file in chunks, and return its digest. `mtime_ns` is read when the file is opened."""
    digest, lines, size, last = hashlib.sha256(), 0, 0, b"\n"
    with Path(path).open("rb", buffering=0) as file:
        about = os.fstat(file.fileno())
        while piece := file.read(CHUNK_SIZE):
            digest.update(piece)
            lines += piece.count(b"\n")
            size += len(piece)
            last = piece[-1:]
    # Count a last line that has no newline.
    return Digest(size, about.st_mtime_ns, lines + (last != b"\n"), digest.hexdigest())


def verify_digest(path: str, stored: Digest) -> str:
    """Compute the digest of a file again; return a message if the job's digest is wrong, otherwise "".

    Also return "" if the file was changed or removed after its job had read it.
    """
    try:
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            direct = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
    if direct == stored.sha256 or (about.st_size, about.st_mtime_ns) != (stored.size, stored.mtime_ns):
        return ""
    return f"{path}: the job computed {stored.sha256[:12]}..., a second computation {direct[:12]}..."


#: Pauses of 0.2, 0.4 and 0.8 s: short enough to see all retries during the demo.
BACKOFF: Final = Exponential(0.2, 1)
RETRIES: Final = 3

#: It has no URL: the demo sets DIBS_URL for this process and for its worker processes.
app = Dibs()


@app.task(queue="files", timeout=None, max_retries=RETRIES, backoff=BACKOFF)
def hash_file(path: str) -> Digest:
    """Return the digest of a file: its size, time of change, number of lines and SHA-256."""
    return compute_digest(path)


@hash_file.on_failure
def give_up(failure: Failure) -> str:
    """Handle a job that failed after all retries: return one line about it."""
    return f"{failure.id}: {failure.error.type} after {failure.attempts} runs"


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
