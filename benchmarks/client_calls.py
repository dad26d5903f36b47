"""Measurements through the client API, on a storage that is already open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self, cast

from dibs import Dibs
from dibs.storage.protocol import Storage

#: Two small numbers, as in the benchmarks of other queues.
DATA: Final = {"x": 1, "y": 22}
CALLERS: Final = 100
#: Seconds between two round trips. The worker is idle again before each.
PAUSE: Final = 0.003
WARM_UP: Final = 10

app = Dibs("memory:")


@app.task(queue="round-trip")
async def double(number: int) -> int:
    return 2 * number


class UnclosedStorage:
    """An open storage that stays open when the app leaves it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@asynccontextmanager
async def app_on(storage: Storage) -> AsyncIterator[None]:
    """Open `app` on this storage for a block."""
    with app.override_storage(cast("Storage", UnclosedStorage(storage))):
        async with app:
            yield


async def enqueue_together(storage: Storage, jobs: int) -> float:
    """Enqueue from 100 concurrent callers, each one job at a time. The client coalesces their calls.

    Return the jobs a second.
    """
    queue = app.queue("together")

    async def caller() -> None:
        for _ in range(jobs // CALLERS):
            await queue.enqueue(DATA)

    async with app_on(storage):
        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return jobs / (time.perf_counter() - started)


async def round_trips(storage: Storage, jobs: int) -> list[float]:
    """Return the ms from each enqueue to its result, with an idle worker on the same event loop."""
    async with app_on(storage):
        worker = asyncio.create_task(app.work(["round-trip"]))
        try:
            return [await _round_trip(n) for n in range(WARM_UP + jobs)][WARM_UP:]
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def _round_trip(number: int) -> float:
    await asyncio.sleep(PAUSE)
    started = time.perf_counter()
    ticket = await double.enqueue(number)
    result = await ticket.result()
    seconds = time.perf_counter() - started
    if result != 2 * number:
        raise ValueError(f"expected {2 * number}, got {result}")
    return seconds * 1000
