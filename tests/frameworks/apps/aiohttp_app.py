"""aiohttp, with the app opened in a cleanup context."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from tests.frameworks.apps.jobs import app, doubled


async def opened(_: web.Application) -> AsyncIterator[None]:
    async with app:
        yield


async def look(request: web.Request) -> web.Response:
    return web.Response(text=str(await doubled.enqueue_and_wait(int(request.match_info["n"]))))


def make(arguments: list[str]) -> web.Application:
    """Return the application, for `python -m aiohttp.web`."""
    server = web.Application()
    server.cleanup_ctx.append(opened)
    server.router.add_get("/async/{n}", look)
    return server
