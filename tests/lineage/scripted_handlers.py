"""Handlers that follow a script in the data of their job, and a record of their runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attrs import Factory, define

from dibs import Claim, CurrentJob, Dibs, Event, Queue
from dibs.model.retry import Immediate
from dibs.worker import WorkReport, run

#: Seconds until a wait fails; long enough for a busy machine.
TIMEOUT = 30.0


@define
class HandlerRecord:
    """The runs of the handlers in one test, and the events that end a `hold`."""

    #: Ids of the jobs, in the order of their runs.
    ran: list[str] = Factory(list)
    active: int = 0
    max_active: int = 0
    #: Ids of the jobs whose handlers hold.
    holding: asyncio.Queue[str] = Factory(asyncio.Queue)
    #: Ends the hold of `async def` handlers.
    release: asyncio.Event = Factory(asyncio.Event)
    #: Ends the hold of `def` handlers.
    release_threads: threading.Event = Factory(threading.Event)
    loop: asyncio.AbstractEventLoop | None = None
    notes: list[str] = Factory(list)
    #: The queue in which a script with `repeat` enqueues its job again.
    queue: Queue | None = None

    def enter(self, job: CurrentJob) -> None:
        self.ran.append(job.id)
        self.active += 1
        self.max_active = max(self.max_active, self.active)

    async def wait_for_hold(self) -> str:
        """Wait until a handler holds, and return the id of its job."""
        async with asyncio.timeout(TIMEOUT):
            return await self.holding.get()


#: The record of the current test; the fixture `record` replaces it.
RECORD = HandlerRecord()


async def scripted(data: Any, job: CurrentJob) -> Any:
    """Follow the script in the data. Return its `return`, or else the data."""
    RECORD.enter(job)
    try:
        await _play(data if isinstance(data, dict) else {}, job)
    finally:
        RECORD.active -= 1
    return data["return"] if isinstance(data, dict) and "return" in data else data


async def _play(script: dict[str, Any], job: CurrentJob) -> None:
    await asyncio.sleep(0)
    if script.get("repeat"):
        assert RECORD.queue is not None
        ticket = await RECORD.queue.enqueue({"repeat": script["repeat"] - 1}, id=job.id)
        RECORD.notes.append(str(ticket.verdict))
    if script.get("hold"):
        RECORD.holding.put_nowait(job.id)
        await RECORD.release.wait()


def scripted_blocking(data: Any, job: CurrentJob) -> Any:
    """Return the data. With `hold` in the script, block the thread until `RECORD.release_threads` is set."""
    RECORD.enter(job)
    if isinstance(data, dict) and data.get("hold"):
        assert RECORD.loop is not None
        RECORD.loop.call_soon_threadsafe(RECORD.holding.put_nowait, job.id)
        RECORD.release_threads.wait(TIMEOUT)
    RECORD.active -= 1
    return data


def set_handler(queue: Queue, function: Any = scripted, **settings: Any) -> None:
    """Declare the handler of a queue. Retries are immediate, unless `settings` has another backoff."""
    queue.handler(**{"backoff": Immediate(), **settings})(function)


async def run_until_empty(app: Dibs, **options: Any) -> WorkReport:
    """Run a worker until all jobs have ended."""
    async with asyncio.timeout(TIMEOUT):
        return await run(app, until="empty", **options)


@asynccontextmanager
async def running_worker(app: Dibs, **options: Any) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """Run a worker during a block, and cancel it at the end of the block."""
    task = asyncio.create_task(run(app, **options))
    try:
        async with asyncio.timeout(TIMEOUT):
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_for_event(queue: Queue, kind: str, count: int = 1) -> Event:
    """Wait until the log has `count` events of a kind, and return the last one."""
    async with asyncio.timeout(TIMEOUT), queue.events("") as events:
        async for event in events:
            count -= event.kind == kind
            if not count:
                return event
    raise AssertionError("the feed ended")


async def read_events(queue: Queue, count: int, after: str = "") -> list[Event]:
    """Return the first `count` events after an offset."""
    found: list[Event] = []
    async with asyncio.timeout(TIMEOUT), queue.events(after) as events:
        while len(found) < count:
            found.append(await anext(events))
    return found


async def claim_one(queue: Queue) -> Claim:
    """Claim a due job without a worker. Its lease lasts until the end of the test."""
    receiver = queue.receive(max_jobs=1, wait=0)
    await receiver.__aenter__()
    return await anext(receiver)
