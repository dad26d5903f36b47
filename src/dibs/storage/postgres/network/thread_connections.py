"""Connections for threads without an event loop, which send the enqueue of one job themselves.

The hand-over of a call to an event loop and back takes more CPU time than the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import psycopg
from attrs import define, field
from psycopg.pq import TransactionStatus

from dibs.errors import DibsError
from dibs.storage.postgres.network import prepared_enqueue
from dibs.storage.postgres.network.connections import PooledConnection, has_unread_data

#: Most connections of one storage for threads. More threads at once share batches on the event loop. Few,
#: because each is a process of the server, which accepts 100 by default.
MAX_FOR_THREADS: Final = 2
#: Seconds from a failure to open one to the next attempt. A server without free connections starts a process
#: for each attempt.
OPEN_PAUSE: Final = 5.0


@define(eq=False)
class ThreadConnections:
    """The connections of one storage for threads. `call` may run on any thread, the others on the loop."""

    #: Opens a connection that has the statement of an enqueue.
    _connect: Callable[[], Awaitable[PooledConnection]]
    # Each single operation on these containers is atomic, so threads need no lock.
    _all: set[PooledConnection] = field(factory=set, init=False)
    _idle: list[PooledConnection] = field(factory=list, init=False)
    _opening: asyncio.Task[None] | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    #: The time on the monotonic clock before which no connection is opened.
    _failed_until: float = field(default=0.0, init=False)

    def call(self, values: Sequence[bytes | None], seconds: float | None) -> Sequence[bytes | None] | None:
        """Run the statement on this thread, and return the columns of its answer.

        Return None if no connection is ready; nothing was sent. Raise TimeoutError after `seconds`
        (None: never), and psycopg's errors.
        """
        if (connection := self._take()) is None:
            return None
        try:
            return prepared_enqueue.run(connection, values, seconds)
        finally:
            # After an exception of a signal handler the reply may still arrive, so the status is not IDLE.
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                self._discard(connection)
            else:
                self._idle.append(connection)
                # Only now, because another thread may close the storage at any time.
                if self._closed:
                    self.close_idle()

    def _take(self) -> PooledConnection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not connection.closed and not has_unread_data(connection.fileno()):
                return connection
            self._discard(connection)

    def _discard(self, connection: PooledConnection) -> None:
        self._all.discard(connection)
        connection.pgconn.finish()

    def close_idle(self) -> None:
        """Close the idle connections. They may be sessions of a server that has become read-only."""
        while (connection := self._take()) is not None:
            self._discard(connection)

    def open_one(self) -> None:
        """Start to open a connection, unless one is idle or opening or there are MAX_FOR_THREADS."""
        if self._closed or self._idle or len(self._all) >= MAX_FOR_THREADS:
            return
        if time.monotonic() < self._failed_until:
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._open_one(), name="dibs-open")

    async def _open_one(self) -> None:
        try:
            connection = await self._connect()
        except (psycopg.Error, DibsError, OSError):
            # If the error also concerns the call on the event loop that started this, that call raises it.
            self._failed_until = time.monotonic() + OPEN_PAUSE
            return
        self._all.add(connection)
        if self._closed:
            self._discard(connection)
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close idle connections now, and each busy one when its call ends."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        self.close_idle()
