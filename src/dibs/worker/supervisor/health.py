"""The health endpoints of a worker over HTTP, for load balancers and orchestrators."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from dibs.host_names import is_allowed_host, is_loopback

#: Seconds a client may take to send its request and read the response.
REQUEST_TIMEOUT: Final = 5.0
#: Largest number of open connections. A further one closes the oldest, so idle connections block no probe.
MAX_CONNECTIONS: Final = 64
#: Largest number of bytes of the head of a request.
MAX_HEAD: Final = 8192
REASON_PHRASES: Final = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a supervisor. It is the body of a response, as a JSON object with these fields."""

    #: True if the supervisor has a lease, and a worker that can claim under it.
    ready: bool
    #: True after a stop signal, or once the queues are empty with until="empty", idle with "idle".
    stopping: bool
    #: The process ids of its worker processes.
    processes: tuple[int, ...]
    #: The number of runs that its workers hold.
    running: int


@asynccontextmanager
async def serve_health(
    listener: socket.socket | None, get_health: Callable[[], Health]
) -> AsyncIterator[None]:
    """Answer GET /healthz and /readyz on a listening socket within the block; all other paths are 404.

    /healthz is 200 while the supervisor's event loop runs, also if its storage is unavailable: a restart
    would not help. /readyz is 200 while the supervisor can claim, else 503. With worker processes, no handler
    can delay a response.
    """
    if listener is None:
        yield
        return

    connections: dict[asyncio.StreamWriter, None] = {}
    # Other machines reach a server of another address under names that dibs does not know.
    checks_host = is_loopback(listener.getsockname()[0])

    async def answer_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = None
        if len(connections) > MAX_CONNECTIONS:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.transport.abort()
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(make_response(head, get_health(), checks_host=checks_host))
                await writer.drain()
        connections.pop(writer, None)
        writer.close()

    server = await asyncio.start_server(answer_request, sock=listener, limit=MAX_HEAD)
    try:
        yield
    finally:
        server.close()
        for writer in list(connections):
            writer.transport.abort()


def make_response(head: bytes, health: Health, *, checks_host: bool) -> bytes:
    """Return the HTTP response to a request with this head (request line and headers).

    With `checks_host`, a request with the name of another host is refused (dibs.host_names).
    """
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status = _status_code(method, path, health) if not checks_host or _is_ours(head) else 421
    body = msgspec.json.encode(health) + b"\n" if status in (200, 503) else b""
    headers = (
        f"HTTP/1.1 {status} {REASON_PHRASES[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return headers.encode() + (body if method != b"HEAD" else b"")


def _status_code(method: bytes, path: bytes, health: Health) -> int:
    if path not in (b"/healthz", b"/readyz"):
        return 404
    if method not in (b"GET", b"HEAD"):
        return 405
    return 503 if path == b"/readyz" and not health.ready else 200


def _is_ours(head: bytes) -> bool:
    """Return whether the header Host of a request is an address or localhost. A probe may send none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host" and not is_allowed_host(value.decode("latin-1").strip()):
            return False
    return True
