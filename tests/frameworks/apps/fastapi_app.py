"""FastAPI, with the app opened in its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tests.frameworks.apps.jobs import app, doubled


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app:
        yield


web = FastAPI(lifespan=lifespan)


@web.get("/async/{n}")
async def look(n: int) -> int:
    return await doubled.enqueue_and_wait(n)


@web.get("/sync/{n}")
def look_sync(n: int) -> int:
    return doubled.sync.enqueue_and_wait(n)
