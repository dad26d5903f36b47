"""The limits of the HTTP server of `dibs web`: a deadline for each request, and a number of connections.

uvicorn 0.54 limits neither by its settings. Its timeout of idle connections ends with the first byte of a
request, so a client that sends a byte a minute keeps its connection for ever. `limit_concurrency` answers 503
but takes any number of connections. A middleware is too late: it is called after the last of the headers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

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
