"""Handlers that do what their job's data say, and a stage where they write down what they did."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dibs import Claim, CurrentJob, Dibs, Event, Failure, PermanentError, Queue, Retry
from dibs.client.calls.handler import Ending
from dibs.model.retry import Immediate
from dibs.worker import WorkReport, run

SOON = 10.0


class Stage:
    """What the handlers of one test did, and where they wait for it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.attempts: list[int] = []
        self.jobs: list[CurrentJob] = []
        self.failures: list[Failure] = []
        self.most = self.now = 0
        self.here: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go_plain = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.notes: list[str] = []
        self.queue: Queue | None = None

    def enter(self, job: CurrentJob) -> None:
        self.ran.append(job.id)
        self.attempts.append(job.attempt)
        self.jobs.append(job)
        self.now += 1
        self.most = max(self.most, self.now)

    async def arrived(self) -> str:
        """Wait for a handler that holds, and return its id."""
        async with asyncio.timeout(SOON):
            return await self.here.get()

    def leave(self) -> None:
        """Let every thread go that is still held."""
        self.go_plain.set()


STAGE = Stage()


class Moody(Exception):
    """An error that says by attributes what is to become of the job."""

    def __init__(self, **said: Any) -> None:
        super().__init__("moody")
        for name, value in said.items():
            setattr(self, name, value)


async def act(data: Any, job: CurrentJob) -> Any:
    """Return the data, unless they are a script of what to do."""
    STAGE.enter(job)
    try:
        await _play(data if isinstance(data, dict) else {}, job)
    except asyncio.CancelledError:
        STAGE.notes.append(f"{job.id} stopped")
        raise
    finally:
        STAGE.now -= 1
    return data["return"] if isinstance(data, dict) and "return" in data else data


async def _play(script: dict[str, Any], job: CurrentJob) -> None:
    await asyncio.sleep(0)
    if "progress" in script:
        await job.progress(script["progress"])
    if script.get("repeat"):
        assert STAGE.queue is not None
        ticket = await STAGE.queue.enqueue({"repeat": script["repeat"] - 1}, id=job.id)
        STAGE.notes.append(str(ticket.verdict))
    if script.get("hold"):
        STAGE.here.put_nowait(job.id)
        await STAGE.go.wait()
    for _ in range(script.get("turns", 0)):
        await asyncio.sleep(0)
    if job.attempt <= script.get("fail", 0):
        raise ValueError(f"no {job.attempt}")
    if script.get("permanent"):
        raise PermanentError("never")
    if script.get("exit"):
        raise SystemExit(3)
    if "moody" in script and job.attempt == 1:
        raise Moody(**script["moody"])
    if "again" in script and job.attempt == 1:
        raise Retry("busy", delay=script["again"])


def act_plain(data: Any, job: CurrentJob) -> Any:
    """The same as a `def` handler: it holds its thread."""
    STAGE.enter(job)
    if isinstance(data, dict) and data.get("hold"):
        assert STAGE.loop is not None
        STAGE.loop.call_soon_threadsafe(STAGE.here.put_nowait, job.id)
        STAGE.go_plain.wait(SOON)
    STAGE.now -= 1
    return data


async def say_nothing(data: Any) -> None:
    """Return nothing, as most handlers do."""


async def tell(failure: Failure) -> None:
    STAGE.failures.append(failure)


async def tell_at_last(failure: Failure, job: CurrentJob) -> None:
    """Fail twice, then take the failure in."""
    STAGE.failures.append(failure)
    if job.attempt < 3:
        raise ValueError("not yet")


async def cannot_tell(failure: Failure) -> None:
    raise PermanentError("the pager is broken")


@dataclass
class Crop:
    left: int
    top: int = 0


async def cropped(left: int) -> Crop:
    """A task, called as it was enqueued, whose result is no plain JSON."""
    return Crop(left, 7)


async def doubled(number: int) -> int:
    return 2 * number


async def nothing() -> None:
    """A task without a result."""


def failing(number: int) -> int:
    raise ValueError(f"not {number}")


async def sealed(ending: Ending) -> None:
    """A hook that changes what it may."""
    ending.result = {"sealed": ending.result}


async def breaks(ending: Ending) -> None:
    ending.result = "broken"
    raise RuntimeError("the hook is broken")


def stumble() -> None:
    """Raise an error with a cause."""
    raise ValueError("outer") from KeyError("inner")


# -- working ---------------------------------------------------------------------------------------------


def play(queue: Queue, function: Any = act, **settings: Any) -> None:
    """Give a queue its handler; comebacks are immediate unless a test says otherwise."""
    queue.handler(**{"backoff": Immediate(), **settings})(function)


async def work(app: Dibs, **words: Any) -> WorkReport:
    """Work until nothing is left to do."""
    async with asyncio.timeout(SOON):
        return await run(app, until="empty", **words)


@asynccontextmanager
async def working(app: Dibs, **words: Any) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """Work during a block; at its end the worker goes at once, if it has not gone before."""
    task = asyncio.create_task(run(app, **words))
    try:
        async with asyncio.timeout(SOON):
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask_to_stop() -> None:
    """Send the signal that ends workers, and return when the loop has heard it."""
    os.kill(os.getpid(), signal.SIGTERM)
    # A thread wakes the loop by the same pipe as a signal does, so it comes behind it.
    await asyncio.to_thread(int)
    for _ in range(20):
        await asyncio.sleep(0)


async def told(queue: Queue, kind: str, count: int = 1) -> Event:
    """Wait until the log has so many events of a kind, and return the last of them."""
    async with asyncio.timeout(SOON), queue.events("") as events:
        async for event in events:
            count -= event.kind == kind
            if not count:
                return event
    raise AssertionError("a feed has no end")


async def read(queue: Queue, count: int, after: str = "") -> list[Event]:
    """Return the first events after an offset."""
    found: list[Event] = []
    async with asyncio.timeout(SOON), queue.events(after) as events:
        while len(found) < count:
            found.append(await anext(events))
    return found


async def claimed(queue: Queue) -> Claim:
    """Claim the job that is due, by hand; its lease lasts for the test."""
    receiver = queue.receive(max_jobs=1, wait=0)
    await receiver.__aenter__()
    return await anext(receiver)
