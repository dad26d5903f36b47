"""A connection that the driver has opened and greeted, and on which we speak ourselves from then on.

Addresses, TLS, passwords and greetings are the driver's. A request through its reading and writing passes
ten coroutines and three timeouts, and takes two to three times the CPU that it takes here; a message of a
subscription takes two turns of the loop more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from hiredis import Reader, pack_command
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError as Unconnected
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as TooLate

#: Seconds that a server may take to say goodbye, as TLS does.
GOODBYE: Final = 1.0


class Wire(asyncio.Protocol):
    """One request at a time and its reply, or, from `listen` on, messages as they come."""

    def __init__(self, connection: AbstractConnection) -> None:
        # The driver has no way to hand these over. It holds the connection for closed from here on.
        writer, connection._writer, connection._reader = connection._writer, None, None  # noqa: SLF001
        if writer is None:
            raise Unconnected("closed right after the greeting")
        # Kept, because a writer that nobody holds closes its transport.
        self._writer = writer
        self._transport = writer.transport
        self._reader = Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._loop = asyncio.get_running_loop()
        #: Where the reply goes that is on its way; None when there is none.
        self._reply: asyncio.Future[Any] | None = None
        #: Where the reply goes that comes before that one; None when none is to come.
        self._first: list[Any] | None = None
        #: How many seconds it may take, and when they are over by the loop's clock.
        self._patience, self._due = 0.0, 0.0
        #: One for many requests, and when it rings: most are answered long before.
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._hear: Callable[[Any], None] | None = None
        #: How many replies and messages have come.
        self.received = 0
        #: Why it is of no use any more, once it is not.
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        #: Done when its socket is closed, which takes a turn of the loop longer, and with TLS a goodbye.
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether it is of use, as far as is known without asking."""
        return not self._transport.is_closing() and not self.lost.done()

    @property
    def owes(self) -> bool:
        """Whether a reply is still on its way."""
        return self._reply is not None

    def listen(self, hear: Callable[[Any], None]) -> None:
        """Pass on every message from now on, in the turn of the loop in which it came."""
        self._hear = hear

    def send(self, *words: Any) -> None:
        """Send a command, unless the connection is lost; whatever answers it comes as a message."""
        if self.is_open:
            self._transport.write(pack_command(words))

    async def ask(self, words: tuple[Any, ...], patience: float) -> Any:
        """Send a command and return its reply. Raises what `owed` raises."""
        if not self.is_open:
            raise Unconnected("the connection is closed")
        reply = self._reply = self._loop.create_future()
        self._transport.write(pack_command(words))
        self._watch(patience)
        said = await reply
        if isinstance(said, Exception):
            raise said
        return said

    async def ask_behind(self, first: tuple[Any, ...], words: tuple[Any, ...], patience: float) -> list[Any]:
        """Send two commands in one go, and return both replies; that of the first may be an error.

        The server does the second when it is through with the first. Raises what `owed` raises.
        """
        if not self.is_open:
            raise Unconnected("the connection is closed")
        before: list[Any] = []
        reply = self._loop.create_future()
        self._first, self._reply = before, reply
        self._transport.write(pack_command(first) + pack_command(words))
        self._watch(patience)
        said = await reply
        if isinstance(said, Exception):
            raise said
        return [*before, said]

    async def owed(self, patience: float) -> Any:
        """Return the reply that is on its way, None if it has come meanwhile and nobody was there for it.

        Raises the error it tells, or the driver's for a lost one. It is lost after so many seconds; then,
        and when the connection closes, this is of no use any more.
        """
        if self._reply is None:
            return None
        if self._reply.done():
            # Whoever waited for it was cancelled.
            self._reply = self._loop.create_future()
        self._watch(patience)
        said = await self._reply
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        """Close it, in the background."""
        self._transport.close()

    async def closed(self) -> None:
        """Close it, and return when it is closed."""
        self.close()
        if (await asyncio.wait({self.gone}, timeout=GOODBYE))[1]:
            self._transport.abort()
            await asyncio.wait({self.gone}, timeout=GOODBYE)

    # -- what asyncio calls --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            # RESP2 has no false value: False is what the reader says of a reply that is not whole.
            while (said := self._reader.gets()) is not False:
                self._take(said)
        except InvalidResponse as error:
            self._lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc or Unconnected("the server closed the connection"))
        self.gone.set_result(None)

    # ------------------------------------------------------------------------------------------------

    def _watch(self, patience: float) -> None:
        """Let the reply be late after so many seconds from now."""
        self._patience, self._due = patience, self._loop.time() + patience
        if self._due < self._rings_at:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = self._due
        self._alarm = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._alarm, self._rings_at = None, math.inf
        if self._reply is None:
            return  # until the next request
        if self._due > self._loop.time():
            self._set_alarm()
        else:
            self._lose(TooLate(f"no reply within {self._patience:g} s"))

    def _take(self, said: Any) -> None:
        self.received += 1
        if self._hear is not None and not isinstance(said, Exception):
            self._hear(said)
            return
        if self._first is not None:
            self._first.append(said)
            self._first = None
            return
        reply, self._reply = self._reply, None
        if reply is None:
            self._lose(said if isinstance(said, Exception) else Unconnected("it said something unasked"))
        elif not reply.done():
            # An error, too: one that is set as such is complained of when its caller was cancelled.
            reply.set_result(said)

    def _lose(self, error: Exception) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_result(error)
