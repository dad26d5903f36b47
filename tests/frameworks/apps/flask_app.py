"""Flask, with blocking views and an event loop for each request."""

from __future__ import annotations

import asyncio

from flask import Flask

from tests.frameworks.apps.jobs import doubled

web = Flask("web")


@web.get("/sync/<int:n>")
def look_sync(n: int) -> str:
    return str(doubled.sync.enqueue_and_wait(n))


@web.get("/async/<int:n>")
def look(n: int) -> str:
    # As Flask runs `async def` views with its extra `async`: on an event loop for each request.
    return str(asyncio.run(_look(n)))


async def _look(n: int) -> int:
    return await doubled.enqueue_and_wait(n)
