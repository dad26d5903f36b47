"""An application whose isolated processes start slowly, hang or die when a test asks for it.

A test writes the fault into the file $START_FAULT. The next process that enters the lifespan takes the file.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dibs.app import Dibs
from tests.worker.apps import held
from tests.worker.jobs import add

#: The timeout of the queue "quick", in ms.
TIMEOUT = 300

#: The name by which a worker passes the application to its processes.
REFERENCE = "tests.worker.starting_app:app"


def quick() -> int:
    return os.getpid()


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    match take_fault():
        case "slow":
            await asyncio.sleep(3 * TIMEOUT / 1000)
        case "hangs":
            await asyncio.sleep(3600)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            pass
    yield


def take_fault() -> str:
    """Return the fault that the test asked for, at most once; "" without one."""
    path = Path(os.environ["START_FAULT"])
    try:
        return path.rename(path.with_name("taken")).read_text()
    except FileNotFoundError:
        return ""


def new_app(url: str | None = None) -> Dibs:
    """Return an application with the handlers and the lifespan of this module."""
    new = Dibs() if url is None else Dibs(url)
    limits = {"timeout": TIMEOUT, "max_timeouts": 0, "max_retries": 0, "max_stalls": 0}
    add(new, "held", held, executor="process")
    add(new, "quick", quick, executor="process", **limits)
    new.lifespan_function = lifespan
    return new


app = new_app()
