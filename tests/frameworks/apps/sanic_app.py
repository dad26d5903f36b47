"""Sanic, with the app opened before the start of each server process."""

from __future__ import annotations

import asyncio

from sanic import Request, Sanic
from sanic.response import HTTPResponse, text

from tests.frameworks.apps.jobs import app, doubled

web = Sanic("web")


@web.before_server_start
async def open_app(*_: object) -> None:
    await app.open()


@web.after_server_stop
async def close_app(*_: object) -> None:
    await app.close()


@web.get("/async/<n:int>")
async def look(request: Request, n: int) -> HTTPResponse:
    return text(str(await doubled.enqueue_and_wait(n)))


@web.get("/sync/<n:int>")
async def look_sync(request: Request, n: int) -> HTTPResponse:
    # Sanic calls blocking views on its event loop, so a blocking call needs a thread.
    return text(str(await asyncio.to_thread(doubled.sync.enqueue_and_wait, n)))
