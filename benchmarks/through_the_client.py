"""What is measured through the client, as an application would call it, on a storage that is open already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self, cast

from dibs import Dibs
from dibs.storage.protocol import Storage

#: As in the comparisons of the field: two small numbers.
DATA: Final = {"x": 1, "y": 22}
CALLERS: Final = 100
#: Seconds between two round trips, so that each meets an idle worker.
PAUSE: Final = 0.003
WARM_UP: Final = 10

app = Dibs("memory:")


@app.task(queue="round-trip")
async def double(number: int) -> int:
    return 2 * number


class Lent:
    """An open storage that the app may enter and leave without closing it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@asynccontextmanager
async def on(storage: Storage) -> AsyncIterator[None]:
    """Let the app's jobs live in this storage for a block."""
    with app.override_storage(cast("Storage", Lent(storage))):
        async with app:
            yield


async def enqueue_together(storage: Storage, jobs: int) -> float:
    """Enqueue from a hundred callers at once, each awaiting its own; the client lets them travel together."""
    queue = app.queue("together")

    async def caller() -> None:
        for _ in range(jobs // CALLERS):
            await queue.enqueue(DATA)

    async with on(storage):
        begun = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return jobs / (time.perf_counter() - begun)


async def round_trips(storage: Storage, jobs: int) -> list[float]:
    """Return the ms from each enqueue to its result, with an idle worker on the same loop."""
    async with on(storage):
        worker = asyncio.create_task(app.work(["round-trip"]))
        try:
            return [await _round_trip(n) for n in range(WARM_UP + jobs)][WARM_UP:]
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def _round_trip(number: int) -> float:
    await asyncio.sleep(PAUSE)
    begun = time.perf_counter()
    ticket = await double.enqueue(number)
    result = await ticket.result()
    took = time.perf_counter() - begun
    if result != 2 * number:
        raise ValueError(f"{number} came back as {result}")
    return took * 1000
