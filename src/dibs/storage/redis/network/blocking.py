"""Connections for threads without an event loop, each with a blocking socket.

The event loop opens and authenticates a connection as any other, and then hands its socket over. A thread
that sends a command itself needs no hand-over of the call to the event loop and back, which costs more than
the command.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from attrs import define, field
from hiredis import Reader
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError

from dibs.errors import OutcomeUnknown
from dibs.storage.redis.network.connections import IDLE_CHECK, LOST, REPLY_TIMEOUT
from dibs.storage.redis.network.driver import parse_error
from dibs.storage.redis.network.errors import is_read_only
from dibs.storage.redis.network.wire import WireConnection

#: Most connections of one storage for threads. More threads at once share batches on the event loop.
MAX_BLOCKING: Final = 16
_READ_BYTES: Final = 65_536


class BlockingConnection:
    """A connection that one thread at a time uses."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(REPLY_TIMEOUT)
        self._reader = Reader(protocolError=InvalidResponse, replyError=parse_error)
        self._used_at = time.monotonic()

    def is_open(self) -> bool:
        """Return False if the server has closed the connection, which is checked after IDLE_CHECK seconds."""
        if time.monotonic() - self._used_at < IDLE_CHECK:
            return True
        self._socket.setblocking(False)  # noqa: FBT003 - the parameter has no name
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        else:
            return False  # the end, or data without a request
        finally:
            self._socket.settimeout(REPLY_TIMEOUT)

    def request(self, packed: bytes, seconds: float | None = None) -> Any:
        """Send a packed command and return its reply, also an error reply. Raise one of LOST.

        The reply may take `seconds`, REPLY_TIMEOUT at most.
        """
        timeout = REPLY_TIMEOUT if seconds is None else min(seconds, REPLY_TIMEOUT)
        if timeout != self._socket.gettimeout():
            self._socket.settimeout(timeout)
        self._socket.sendall(packed)
        while (reply := self._reader.gets()) is False:
            if not (data := self._socket.recv(_READ_BYTES)):
                raise RedisConnectionError("the server closed the connection")
            self._reader.feed(data)
        self._used_at = time.monotonic()
        return reply

    def close(self) -> None:
        self._socket.close()


@define(eq=False)
class BlockingConnections:
    """The blocking connections to one server. `call` may run on any thread, the other methods on the loop."""

    _connect: Callable[[], Awaitable[WireConnection]]
    url: str
    # Each single operation on these containers is atomic, so threads need no lock.
    _all: set[BlockingConnection] = field(factory=set, init=False)
    _idle: list[BlockingConnection] = field(factory=list, init=False)
    _opening: asyncio.Task[None] | None = field(default=None, init=False)
    _has_tls: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)

    def call(self, packed: bytes, seconds: float | None = None) -> Any:
        """Send a packed command on this thread, and return its reply or redis-py's error for an error reply.

        The reply may take `seconds`, REPLY_TIMEOUT at most.
        Return None if no connection is ready; the command was not sent. Raise OutcomeUnknown if the reply is
        lost.
        """
        if (connection := self._acquire()) is None:
            return None
        try:
            reply = connection.request(packed, seconds)
        except LOST as error:
            self._discard(connection)
            raise OutcomeUnknown(
                f"lost the reply of {self.url} to a command ({type(error).__name__}): it may have happened"
            ) from None
        except BaseException:
            # An exception of a signal handler: the reply may still arrive.
            self._discard(connection)
            raise
        if isinstance(reply, LOST) or is_read_only(reply) or self._closed:
            self._discard(connection)
        else:
            self._idle.append(connection)
        return reply

    def _acquire(self) -> BlockingConnection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_open():
                return connection
            self._discard(connection)

    def _discard(self, connection: BlockingConnection) -> None:
        self._all.discard(connection)
        connection.close()

    def open_one(self) -> None:
        """Start to open a connection, unless one is opening or there are MAX_BLOCKING."""
        if self._closed or self._has_tls or len(self._all) >= MAX_BLOCKING:
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._open_one())

    async def _open_one(self) -> None:
        try:
            wire = await self._connect()
        except (RedisError, *LOST):
            return  # the call on the event loop, which started this, raises the error
        if self._closed:
            await wire.aclose()
        elif (taken := wire.take_socket()) is not None:
            connection = BlockingConnection(taken)
            self._all.add(connection)
            self._idle.append(connection)
        else:
            self._has_tls = True
            await wire.aclose()

    async def close(self) -> None:
        """Close idle connections now, and each busy one when its request ends."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        while (connection := self._acquire()) is not None:
            self._discard(connection)
