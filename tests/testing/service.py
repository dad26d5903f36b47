"""A small application for the tests: its tasks, and `done`, the record of their runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import datetime

from attrs import define

from dibs import Dibs, Exponential, Failure, Fixed, PermanentError, current_job

app = Dibs("file:./never-made")
done: list[str] = []
#: Gets an item when a run of `patient` begins.
begun: asyncio.Queue[None] = asyncio.Queue()
#: Set by a test to end the run of `stuck`.
free = threading.Event()


def runs_done() -> list[str]:
    """Return the entries of `done` that runs made, without those of the lifespan."""
    return [entry for entry in done if entry not in ("opened", "closed")]


@define
class Mail:
    to: str
    at: datetime


@app.lifespan
async def pools() -> AsyncIterator[str]:
    done.append("opened")
    yield "a pool"
    done.append("closed")


@app.task(queue="send", max_retries=2, backoff=Fixed(30))
async def send(mail: Mail) -> Mail:
    done.append(f"send to {mail.to}, attempt {current_job().attempt}")
    if "@" not in mail.to:
        raise ValueError(mail.to)
    return mail


@send.on_failure
async def give_up(failure: Failure) -> None:
    done.append(f"gave up after {failure.attempts}")


@app.task(queue="plain")
def plain(number: int) -> str:
    done.append(f"plain {number} with {current_job().resources}")
    return str(number)


@app.task(queue="isolated", executor="process")
def isolated() -> str:
    done.append("isolated")
    return "here"


@app.task(queue="chain")
async def chain(left: int) -> None:
    done.append(f"chain {left}")
    if left:
        await chain.enqueue(left - 1)


@app.task(queue="asks")
async def asks(number: int) -> str:
    """A handler that waits for the result of another job."""
    return f"answer {await plain.options(wait=5).enqueue_and_wait(number)}"


@app.task(queue="refresh", every="1h")
async def refresh() -> None:
    done.append("refresh")


@app.task(queue="endless")
async def endless() -> None:
    await endless.options(delay=1).enqueue()


@app.task(queue="stubborn", backoff=Exponential(1000, 10_000))
async def stubborn() -> int:
    if current_job().attempt < 4:
        raise RuntimeError("not yet")
    return current_job().attempt


@app.task(queue="patient", timeout=None)
async def patient() -> None:
    begun.put_nowait(None)
    await asyncio.Event().wait()


@app.task(queue="stuck", timeout=0.02, max_timeouts=0)
def stuck() -> None:
    free.wait(10)


@app.task(queue="never")
def never() -> None:
    raise PermanentError("no")
