"""Without a lifespan: the storage opens at the first request."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.frameworks.apps.jobs import doubled


async def look(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(await doubled.enqueue_and_wait(request.path_params["n"])))


def look_sync(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(doubled.sync.enqueue_and_wait(request.path_params["n"])))


web = Starlette(routes=[Route("/async/{n:int}", look), Route("/sync/{n:int}", look_sync)])
