"""`dibs web`: the dashboard on a server of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from secrets import token_urlsafe

import uvicorn
from attrs import frozen

from dibs.app import Dibs
from dibs.host_names import is_loopback
from dibs.web.application import dibs_web
from dibs.web.gate import TokenGate
from dibs.web.http_limits import MAX_CONNECTIONS, LimitedProtocol
from dibs.web.reading.source import Part, Redact
from dibs.web.safety import Allow

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
