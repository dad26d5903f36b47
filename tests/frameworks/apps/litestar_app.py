"""Litestar, with the app opened in its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar, get

from tests.frameworks.apps.jobs import app, doubled


@asynccontextmanager
async def lifespan(_: Litestar) -> AsyncIterator[None]:
    async with app:
        yield


@get("/async/{n:int}")
async def look(n: int) -> str:
    return str(await doubled.enqueue_and_wait(n))


@get("/sync/{n:int}", sync_to_thread=True)
def look_sync(n: int) -> str:
    return str(doubled.sync.enqueue_and_wait(n))


web = Litestar([look, look_sync], lifespan=[lifespan])
