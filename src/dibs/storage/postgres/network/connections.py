"""A few open connections, handed out last in first out, so that few of them stay warm.

Ours and not psycopg_pool: nothing here needs its worker tasks, and a verb pays for every await on its way.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from dibs.storage.postgres.network.errors import Gate

#: Statements are prepared by the driver when it has seen them this often; never behind a pooler, which may
#: hand the next transaction to another session.
PREPARE_AFTER: Final = 3
MOST: Final = 10
CONNECT_SECONDS: Final = 10

#: How long a close waits for statements that nobody waits for any more, s.
FAREWELL: Final = 5.0
#: How long the driver waits between two looks whether it was interrupted, s: as it does by itself.
INTERVAL: Final = 0.1

RV = TypeVar("RV")


class Connection(AsyncConnection[Any]):
    """A connection on which a statement may run to its end though its caller was cancelled.

    The driver would open another connection for each, to cancel what is over in a millisecond (behind a
    pooler perhaps somebody else's), and be interrupted in that where a loop ends: it says so on stderr.
    """

    #: Whether it does: for single statements, not for what has to be rolled back.
    goes_on = False
    #: What is still to be read for a caller who is gone.
    owed: PQGen[Any] | None = None

    async def wait(self, gen: PQGen[RV], interval: float = INTERVAL, timeout: float | None = None) -> RV:
        if not self.goes_on:
            return await super().wait(gen, interval, timeout)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.owed = gen
            raise

    async def read_away(self) -> None:
        """Read what is owed. Raises the driver's errors; what it raises leaves the connection of no use."""
        gen, self.owed = self.owed, None
        if gen is not None:
            await waiting.wait_async(gen, self.pgconn.socket, interval=INTERVAL)


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
        #: Connections on which a statement ends for nobody.
        self._clearing: set[asyncio.Task[None]] = set()

    async def connect(self) -> Connection:
        """Open a connection. Raises StorageUnavailable."""
        try:
            connection = await Connection.connect(**self._conninfo, autocommit=True)
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
            if connection is not None and connection.owed is not None:
                # It keeps its room meanwhile: whoever cancels much opens no more than others.
                task = asyncio.ensure_future(self._clear(connection))
                self._clearing.add(task)
                task.add_done_callback(self._clearing.discard)
            else:
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

    async def _clear(self, connection: Connection) -> None:
        """Let a statement end that nobody waits for any more; only then may the connection be used again."""
        try:
            await connection.read_away()
        except (psycopg.Error, OSError):
            # Of no interest to anybody; the connection may still be good.
            pass
        except BaseException:
            connection.pgconn.finish()
            raise
        finally:
            self._room.release()
        await self._back(connection)

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        # Who was cancelled a moment ago says so in the next turn of the loop.
        await asyncio.sleep(0)
        if self._clearing:
            await asyncio.wait(self._clearing, timeout=FAREWELL)
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


def _readable(fileno: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([fileno], [], [], 0)[0])
    look = select.poll()
    look.register(fileno, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(look.poll(0))
