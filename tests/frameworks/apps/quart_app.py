"""Quart, with the app opened before serving."""

from __future__ import annotations

from quart import Quart

from tests.frameworks.apps.jobs import app, doubled

web = Quart("web")
web.before_serving(app.open)
web.after_serving(app.close)


@web.get("/async/<int:n>")
async def look(n: int) -> str:
    return str(await doubled.enqueue_and_wait(n))


@web.get("/sync/<int:n>")
def look_sync(n: int) -> str:
    return str(doubled.sync.enqueue_and_wait(n))
