"""`dibs_web`: the dashboard as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from attrs import define, field
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from dibs.app import Dibs
from dibs.errors import ConfigurationError, DibsError
from dibs.web.live import Live
from dibs.web.pages import Pages
from dibs.web.reading.history import History
from dibs.web.reading.source import Redact, Source
from dibs.web.routes import Routes
from dibs.web.safety import Allow, Guard
from dibs.web.site import Site

log = logging.getLogger("dibs.web")


@define(eq=False)
class Dashboard:
    """The ASGI application that `dibs_web` returns."""

    app: Dibs
    _pages: Pages = field(repr=False)
    _site: Site = field(repr=False)
    _asgi: ASGIApp = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and the end of a server."""
        if scope["type"] == "lifespan":
            await self.prepare()
        elif not self._site.is_compiled:
            # Servers do not announce their start to mounted applications.
            await asyncio.to_thread(self._site.compile)
        await self._asgi(scope, receive, send)

    async def prepare(self) -> None:
        """Compile the templates in a thread and open the storage, so that the first page is fast.

        A server does this at its start if it serves the dashboard itself. Call it in the lifespan of the
        application in which the dashboard is mounted; else the first request does it. A storage that cannot
        be opened is logged, and each page tries to open it again.
        """
        try:
            await asyncio.gather(asyncio.to_thread(self._site.compile), self._pages.source.storage())
        except DibsError as error:
            log.warning("the storage cannot be opened yet: %s", error)


def dibs_web(
    app_or_url: Dibs | str,
    *,
    allow: Allow | None = None,
    redact: Redact | None = None,
    warehouse: str | Path | None = None,
    allowed_hosts: Collection[str] = (),
) -> Dashboard:
    """Return the dashboard of an app, or of the storage at a URL, as an ASGI application.

    Mount it in Starlette or FastAPI: `api.mount("/jobs", dibs_web(app))`. The storage opens at
    the first request, or with `await dashboard.prepare()`. With an app it knows the tasks: it names the
    arguments, and builds forms from the signatures.

    - `allow(request)` returns the access of a request of Starlette: "write", "read" or "none". It may be
      async. Default: "read" for each request.
    - `redact(queue, part, value)` returns the value that a page shows instead of a stored one. `part` is
      "data", "attributes", "result", "progress", "step" or "error"; the value of an error is its text. If the
      hook raises an error, the page shows no value. Default: values are shown as they are.
    - `warehouse` is the place of the tables of `dibs spark history`, for the page History: a folder, or a URL
      such as s3://bucket/history. Default: none.
    - `allowed_hosts` are the names of hosts under which browsers reach the dashboard, in the form of Django's
      ALLOWED_HOSTS: "jobs.example.org", ".example.org", or "*" for any. IP addresses and localhost are always
      allowed. A request with another name gets the status 421.

    Raises ConfigurationError for another object than an app or a URL.
    """
    if isinstance(app_or_url, str):
        app_or_url = Dibs(app_or_url)
    if not isinstance(app_or_url, Dibs):
        raise ConfigurationError(
            f"app_or_url is of type {type(app_or_url).__name__}; pass an app, or a URL such as file:./jobs"
        )
    for name, function in (("allow", allow), ("redact", redact)):
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name} is {function!r:.60}; pass a function")
    if warehouse is not None and not isinstance(warehouse, (str, Path)):
        raise ConfigurationError(
            f"warehouse is {warehouse!r:.60}; pass a folder, or a URL such as s3://bucket/history"
        )
    if isinstance(allowed_hosts, str) or not all(isinstance(name, str) for name in allowed_hosts):
        raise ConfigurationError(
            f"allowed_hosts is {allowed_hosts!r:.60}; pass a list of names, such as ['jobs.example.org']"
        )
    history = History(
        warehouse,
        with_error_texts=redact is None,
        sizes=app_or_url.handlers.sizes(),
    )
    pages = Pages(Source(app_or_url, redact), history)
    site = Site()
    routes = Routes(pages, Live(pages), site)
    return Dashboard(
        app_or_url,
        pages,
        site,
        Guard(
            Starlette(routes=routes.all(), exception_handlers={404: routes.not_found}),
            allow,
            tuple(allowed_hosts),
        ),
    )
