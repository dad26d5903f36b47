"""What load balancers and orchestrators ask a worker over HTTP: does it live, and can it work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
from msgspec import Struct

#: Seconds a client may take to say what it wants.
PATIENCE: Final = 5.0
PHRASES: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Health(Struct, frozen=True, kw_only=True):
    """How a supervisor is."""

    #: It has a lease, and a worker that can claim under it.
    ready: bool
    stopping: bool
    #: The ids of its worker processes.
    processes: tuple[int, ...]
    running: int


@asynccontextmanager
async def serve_health(listener: socket.socket | None, ask: Callable[[], Health]) -> AsyncIterator[None]:
    """Answer on a listening socket for a block: GET /healthz and /readyz, all else is 404.

    /healthz is 200 while the supervisor turns, also when its storage is away: to restart it would not help.
    /readyz is 200 while it can claim. It runs no handler, so no handler can keep it from answering.
    """
    if listener is None:
        yield
        return

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(response_to(head, ask()))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield
    finally:
        server.close()


def response_to(head: bytes, health: Health) -> bytes:
    """Return the response to a request of this head."""
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status = _status(method, path, health)
    body = msgspec.json.encode(health) + b"\n" if status in (200, 503) else b""
    told = (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return told.encode() + (body if method != b"HEAD" else b"")


def _status(method: bytes, path: bytes, health: Health) -> int:
    if path not in (b"/healthz", b"/readyz"):
        return 404
    if method not in (b"GET", b"HEAD"):
        return 405
    return 503 if path == b"/readyz" and not health.ready else 200
