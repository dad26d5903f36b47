"""Storages with jobs, for tests of the data source; they are filled and read through the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from dibs.model.events import LogEvent
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, RetryLater, SettleAction, Settlement
from dibs.model.results import ExportRecord
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

T = TypeVar("T")

#: Schemes of storages that Spark's processes can open.
SHARED: Final = ("file", "redis", "postgresql")


def at(url: str, work: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
    """Open the storage at a URL and call `work` with it."""

    async def opened() -> T:
        async with open_storage(url) as storage:
            return await work(storage)

    return asyncio.run(opened())


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Poll a condition that another process makes true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.02)


def jobs(*ids: str, payload: bytes = b'{"n": 1}', **attributes: bytes) -> list[EnqueueRequest]:
    data = JobData(payload=payload, attributes=attributes)
    return [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids]


async def fill(storage: Storage) -> None:
    """Fill a queue `work` with jobs in every state and outcomes of every kind, and a queue `other` with
    one job.
    """
    await storage.enqueue("work", jobs("done", "failed", "again", "busy"))
    lease = (await storage.grant(["work"], 600_000, "a test")).lease
    claim = await storage.claim("work", lease, 4)
    fences = {job.id: job.run.fence for job in claim.jobs if job.run}
    error = Error(type="ValueError", message="no")
    ends: dict[str, SettleAction] = {
        "done": Complete(result=b"[1]"),
        "failed": Fail(error=error),
        "again": RetryLater(delay=10**7),
    }
    await storage.settle(
        "work", [Settlement(id=id, fence=fences[id], action=how) for id, how in ends.items()]
    )
    await storage.enqueue("work", jobs("busy", "gone", "next", colour=b'"red"'))
    await storage.cancel("work", ["gone"])
    await storage.enqueue("other", jobs("alone", payload=b"\xff no JSON"))


async def run_some(storage: Storage, queue: str, ids: list[str]) -> None:
    """Enqueue jobs and complete them, which makes one event each."""
    await storage.enqueue(queue, jobs(*ids))
    lease = (await storage.grant([queue], 600_000, "a test")).lease
    while claimed := (await storage.claim(queue, lease, 100)).jobs:
        done = [Settlement(id=j.id, fence=j.run.fence, action=Complete()) for j in claimed if j.run]
        await storage.settle(queue, done)


async def records(storage: Storage, queue: str) -> dict[str, ExportRecord]:
    """Return every id of a queue."""
    found: dict[str, ExportRecord] = {}
    after: str | None = None
    while True:
        page = await storage.export(queue, after=after, limit=1000)
        found |= {record.id: record for record in page.records}
        if (after := page.after) is None:
            return found


async def log(storage: Storage, queue: str) -> list[tuple[str, LogEvent]]:
    """Return all events in the log of a queue."""
    found: list[tuple[str, LogEvent]] = []
    after: str | None = None
    while page := (await storage.events(queue, after=after, limit=1000)).events:
        found += page
        after = page[-1][0]
    return found
