"""The server of `dibs web`: its settings, the limits of HTTP, and the check of its password.

uvicorn 0.54 limits neither the time of a request nor the number of connections. Its timeout of idle
connections ends with the first byte of a request, so a client that sends a byte a minute keeps its connection
for ever. `limit_concurrency` answers 503 but takes any number of connections. A middleware is too late: it is
called after the last of the headers.

The secret that a browser keeps is a cookie, and browsers share cookies between all ports of a host: a program
on another port of this machine would receive it, whatever its name or prefix. So the cookie has a path that
nobody can guess, and the dashboard lies below it. A browser sends the cookie with no request outside of this
path. The path alone opens nothing, so that a shared address is harmless. The cookie is not the token.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import urlencode

import uvicorn
from attrs import define, field, frozen
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dibs.app import Dibs
from dibs.host_names import is_loopback
from dibs.web.application import dibs_web
from dibs.web.reading.source import Part, Redact
from dibs.web.safety import HEADERS, Allow

#: Seconds in which a client must have sent a request: from the opening of its connection, or the end of the
#: response before, to the last byte of the body.
REQUEST_SECONDS: Final = 30.0
#: From so many connections on, requests are answered with 503. Processes may often open 1,024 files.
MAX_CONNECTIONS: Final = 800
#: Further connections, for these answers. Those beyond are closed at once.
SPARE_CONNECTIONS: Final = 50


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, by h11, which limits the bytes of the headers to 16 KiB."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS + SPARE_CONNECTIONS:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disarm()

    def _watch(self) -> None:
        """Start the deadline if the client has to send, and end it when its request is complete."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._disarm()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


COOKIE: Final = "dibs_session"


@define(eq=False)
class TokenGate:
    """ASGI middleware that closes a dashboard to requests without the token or its cookie."""

    app: ASGIApp
    token: str = field(repr=False)
    #: The path of the dashboard for browsers, and the value of the cookie. Both come from the token, so that
    #: they outlast a new start of a server with the same token.
    folder: str = field(init=False, repr=False)
    session: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.folder = f"/{self._derive('folder')}"
        self.session = self._derive("session")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        root = self.folder if scope["path"].startswith(f"{self.folder}/") else ""
        if self._is_known(request, root):
            await self.app({**scope, "root_path": root}, receive, send)
        else:
            await self._refuse(request, root)(scope, receive, send)

    def _is_known(self, request: Request, root: str) -> bool:
        # For programs, which have no cookie. A browser sends this header for no other site.
        if _is_equal(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            return True
        return bool(root) and _is_equal(request.cookies.get(COOKIE, ""), self.session)

    def _refuse(self, request: Request, root: str) -> Response:
        """Return the redirect into the dashboard for a GET with the token, else the refusal."""
        if request.method == "GET" and _is_equal(request.query_params.get("token", ""), self.token):
            return self._log_in(request, root)
        return PlainTextResponse(
            "Open the URL that `dibs web` has printed: it ends with ?token= and the token.\n", 401, HEADERS
        )

    def _log_in(self, request: Request, root: str) -> Response:
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        query = f"?{urlencode(rest)}" if rest else ""
        path = request.scope["path"].removeprefix(root)
        answer = RedirectResponse(f"{self.folder}{path}{query}", 303, HEADERS)
        answer.set_cookie(
            COOKIE,
            self.session,
            path=f"{self.folder}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return answer

    def _derive(self, purpose: str) -> str:
        return blake2b(f"dibs web {purpose} {self.token}".encode(), digest_size=16).hexdigest()


def _is_equal(given: str, token: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), token.encode())


#: Seconds that open requests have after a stop signal. Live streams would otherwise keep the server open.
GRACE_SECONDS = 1


@frozen
class ServerOptions:
    """The options of `dibs web`."""

    host: str
    port: int
    write: bool
    hide_values: bool
    #: The token of the address; "" to make one if it is needed.
    token: str = ""
    #: Folder or URL of the tables of `dibs spark history`, for the page History.
    warehouse: str | None = None
    #: Names of hosts in addresses of the dashboard, as a proxy passes them; see dibs.host_names.
    allowed_hosts: tuple[str, ...] = ()

    @property
    def needs_token(self) -> bool:
        """True if the dashboard may write, or if other machines can reach it."""
        return self.write or not is_loopback(self.host)


def hide_everything(_queue: str, _part: Part, _value: object) -> object:
    """Hide each value: a redaction hook."""
    return "hidden"


async def serve(app: Dibs, options: ServerOptions, ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM. `ready` is called once with the address to open.

    Raises OSError if the port cannot be opened, and the errors of opening the storage.
    """
    listener = _listen(options.host, options.port)
    port = listener.getsockname()[1]
    token = (options.token or token_urlsafe(24)) if options.needs_token else ""
    redact: Redact | None = hide_everything if options.hide_values else None
    write = options.write
    allow: Allow = lambda _: "write" if write else "read"  # noqa: E731 - shorter than a function
    # Of a server that other machines reach, dibs does not know the names, and the token protects it.
    hosts = options.allowed_hosts or (() if is_loopback(options.host) else ("*",))
    dashboard = dibs_web(app, allow=allow, redact=redact, warehouse=options.warehouse, allowed_hosts=hosts)
    async with app:
        await dashboard.prepare()
        config = uvicorn.Config(
            TokenGate(dashboard, token) if token else dashboard,
            http=LimitedProtocol,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        # Imports the parser of HTTP, for which the first request would wait.
        config.load()
        ready(_address(options.host, port, token))
        with listener:
            await uvicorn.Server(config).serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)  # noqa: FBT003 - its only form
    except OSError:
        listener.close()
        raise
    return listener


def _address(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def run(app: Dibs, options: ServerOptions, ready: Callable[[str], None]) -> None:
    """Run `serve` on an event loop of its own. Ctrl-C and SIGTERM end it without an error."""
    # uvicorn stops at a signal, and then raises it again for the handler before it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(app, options, ready))
