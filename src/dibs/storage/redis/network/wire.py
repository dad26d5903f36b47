"""A connection to Redis. redis-py opens and authenticates it; afterwards dibs itself reads and writes it.

This saves time: a request through redis-py's own reader and writer passes ten coroutines and three timeouts,
and takes two to three times the CPU time of a request here. There, a message of a subscription also takes two
more turns of the event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hiredis import Reader, pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dibs.model.plain_values import to_plain
from dibs.storage.redis.network.driver import AbstractConnection, detach_stream, parse_error

#: Seconds that closing a connection may take, for example for TLS's close_notify.
CLOSE_TIMEOUT: Final = 1.0


def pack(command: tuple[Any, ...]) -> bytes:
    """Return a command in the protocol of Redis. hiredis packs no subclass of int, such as an IntEnum."""
    try:
        packed: bytes = pack_command(command)
    except TypeError:
        packed = pack_command(tuple(map(to_plain, command)))
    return packed


class WireConnection(asyncio.Protocol):
    """A connection that carries one request at a time, or, after `listen`, messages of a subscription."""

    def __init__(self, connection: AbstractConnection) -> None:
        writer = detach_stream(connection)
        if writer is None:
            raise RedisConnectionError("the server closed the connection after the handshake")
        # The writer is kept because a StreamWriter without references closes its transport.
        self._writer = writer
        self._transport = writer.transport
        self._reader = Reader(protocolError=InvalidResponse, replyError=parse_error)
        self._loop = asyncio.get_running_loop()
        #: Called with the pending reply, or with the error that ended the connection; None if no reply is
        #: pending.
        self._on_reply: Callable[[Any], None] | None = None
        #: The replies to the commands before the last one, and how many of them are pending.
        self._earlier: list[Any] = []
        self._earlier_pending = 0
        #: Seconds that the pending reply may take, and the time on the clock of the loop when they are over.
        self._timeout, self._deadline = 0.0, 0.0
        #: One timer for many requests, because most replies arrive long before it fires. It is set again only
        #: when it fires, or for an earlier deadline. `_timer_at` is the time at which it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._on_message: Callable[[Any], None] | None = None
        #: Number of replies and messages received so far.
        self.received_count = 0
        #: Done with an error once the connection is unusable.
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        #: Done when the socket is closed: a turn of the loop later, with TLS after the close_notify.
        self.socket_closed: asyncio.Future[None] = self._loop.create_future()
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """True unless the connection is known to be closed.

        Only a request shows whether the server answers.
        """
        return not self._transport.is_closing() and not self.lost.done()

    @property
    def has_pending_reply(self) -> bool:
        """True if the reply to a sent request has not arrived."""
        return self._on_reply is not None

    def listen(self, on_message: Callable[[Any], None]) -> None:
        """From now on, call `on_message` with each message of a subscription as soon as it arrives."""
        self._on_message = on_message

    def send(self, *command: Any) -> None:
        """Send a command such as SUBSCRIBE, whose replies arrive as messages. Ignore a lost connection."""
        if self.is_open:
            self._transport.write(pack_command(command))

    async def request(self, command: tuple[Any, ...], timeout: float) -> Any:
        """Send a command and return its reply. Raise the errors of `read_pending_reply`."""
        if not self.is_open:
            raise RedisConnectionError("the connection is closed")
        pending = self._loop.create_future()
        self.start_request(pack(command), timeout, partial(_set_reply, pending))
        reply = await pending
        if isinstance(reply, Exception):
            raise reply
        return reply

    def start_request(
        self, packed: bytes, timeout: float, on_reply: Callable[[Any], None], *, earlier: int = 0
    ) -> None:
        """Send a packed command, behind `earlier` others. Call `on_reply` once, as soon as its reply arrives.

        `on_reply` gets the reply, which may be an error, or the error of `read_pending_reply`. It must raise
        no error. The connection is open, and no reply is pending.
        """
        self._on_reply, self._earlier_pending = on_reply, earlier
        self._transport.write(packed)
        self._start_timeout(timeout)

    async def request_in_order(self, commands: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
        """Send commands at once and return their replies; each but the last may be an error.

        The server runs a command after the one before it has ended. Raise the errors of `read_pending_reply`.
        """
        if not self.is_open:
            raise RedisConnectionError("the connection is closed")
        packed = b"".join(map(pack, commands))
        earlier: list[Any] = []
        self._earlier = earlier
        pending = self._loop.create_future()
        self.start_request(packed, timeout, partial(_set_reply, pending), earlier=len(commands) - 1)
        reply = await pending
        if isinstance(reply, ResponseError):
            # The first error is the cause of those behind it.
            reply = next((one for one in earlier if isinstance(one, ResponseError)), reply)
        if isinstance(reply, Exception):
            raise reply
        return [*earlier, reply]

    async def read_pending_reply(self, timeout: float) -> Any:
        """Return the reply to a request whose caller was cancelled; None if no reply is pending.

        Raise the error of an error reply. Raise redis-py's TimeoutError after `timeout` seconds without a
        reply, or ConnectionError if the connection closes; the connection is then unusable.
        """
        if self._on_reply is None:
            return None
        # A future of its own, because the caller of the request was cancelled, and its future with it.
        pending = self._loop.create_future()
        self._on_reply = partial(_set_reply, pending)
        self._start_timeout(timeout)
        reply = await pending
        if isinstance(reply, Exception):
            raise reply
        return reply

    def take_socket(self) -> socket.socket | None:
        """Return a blocking socket of this connection, and close the transport. None if it uses TLS."""
        connected = self._transport.get_extra_info("socket")
        if connected is None or self._transport.get_extra_info("ssl_object") is not None:
            return None
        # A transport closes its file descriptor, and the connection stays open with a second one.
        taken = socket.socket(fileno=os.dup(connected.fileno()))
        taken.setblocking(True)  # noqa: FBT003 - the parameter has no name
        self.close()
        return taken

    def close(self) -> None:
        """Start to close the connection, and return at once."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close the connection, and wait until its socket is closed: at most twice CLOSE_TIMEOUT seconds."""
        self.close()
        if (await asyncio.wait({self.socket_closed}, timeout=CLOSE_TIMEOUT))[1]:
            self._transport.abort()
            await asyncio.wait({self.socket_closed}, timeout=CLOSE_TIMEOUT)

    # -- called by asyncio ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            # RESP2 has no boolean, so False means that the reader has no complete reply.
            while (reply := self._reader.gets()) is not False:
                self._receive(reply)
        except InvalidResponse as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or RedisConnectionError("the server closed the connection"))
        self.socket_closed.set_result(None)

    # ------------------------------------------------------------------------------------------------

    def _start_timeout(self, timeout: float) -> None:
        """Set the deadline of the pending reply, `timeout` seconds from now."""
        self._timeout, self._deadline = timeout, self._loop.time() + timeout
        if self._deadline < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._on_reply is None:
            return  # the next request sets the timer
        if self._deadline > self._loop.time():
            self._set_timer()
        else:
            self._fail(RedisTimeoutError(f"no reply within {self._timeout:g} s"))

    def _receive(self, reply: Any) -> None:
        self.received_count += 1
        if self._on_message is not None and not isinstance(reply, Exception):
            self._on_message(reply)
            return
        if self._earlier_pending:
            self._earlier_pending -= 1
            self._earlier.append(reply)
            return
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply)
            return
        unexpected = RedisConnectionError("the server sent a reply without a request")
        self._fail(reply if isinstance(reply, Exception) else unexpected)

    def _fail(self, error: Exception) -> None:
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(error)


def _set_reply(pending: asyncio.Future[Any], reply: Any) -> None:
    """Set a reply as a result, also an error: asyncio logs an exception that no caller retrieves."""
    if not pending.done():
        pending.set_result(reply)
