"""A few open connections, handed out last in first out, so that few of them stay warm.

Ours and not psycopg_pool: nothing here needs its worker tasks, and a verb pays for every await on its way.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from dibs.storage.postgres.gate import Gate

#: Statements are prepared by the driver when it has seen them this often; never behind a pooler, which may
#: hand the next transaction to another session.
PREPARE_AFTER: Final = 3
MOST: Final = 10
CONNECT_SECONDS: Final = 10

Connection = AsyncConnection[Any]


class Connections:
    """The connections of one storage, on one event loop."""

    def __init__(self, conninfo: dict[str, Any], gate: Gate) -> None:
        self._conninfo = {"connect_timeout": CONNECT_SECONDS, "application_name": "dibs", **conninfo}
        self._gate = gate
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(MOST)
        #: Whether statements may be prepared.
        self.prepares = True
        self._closed = False

    async def connect(self) -> Connection:
        """Open a connection. Raises StorageUnavailable."""
        try:
            connection = await AsyncConnection.connect(**self._conninfo, autocommit=True)
        except (psycopg.Error, OSError) as error:
            raise self._gate.unreachable(error) from None
        connection.prepare_threshold = PREPARE_AFTER if self.prepares else None
        return connection

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Lend a connection; one that was broken meanwhile is not given to the next."""
        await self._room.acquire()
        connection = None
        try:
            connection = self._fresh() or await self.connect()
            yield connection
        finally:
            self._room.release()
            if connection is not None:
                await self._back(connection)

    def _fresh(self) -> Connection | None:
        """Return an idle connection on which nothing came: unasked, a server speaks only to leave."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not _readable(connection.fileno()):
                return connection
            connection.pgconn.finish()
        return None

    async def _back(self, connection: Connection) -> None:
        usable = not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


def _readable(fileno: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([fileno], [], [], 0)[0])
    look = select.poll()
    look.register(fileno, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(look.poll(0))
