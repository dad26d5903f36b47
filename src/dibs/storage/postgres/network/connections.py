"""A pool of connections to one Postgres server.

The pool lends the connection that was returned last, so that it opens no more connections than needed. Why
not psycopg_pool: its worker tasks are not needed here, and each of its `await`s would add time to every call.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from dibs.errors import StorageReadOnly
from dibs.storage.postgres.network.address import PostgresAddress
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.unsent import mark_unsent

#: Executions of a statement after which the driver prepares it. Behind a pooler such as PgBouncer no
#: statement is prepared, because the pooler may run the next transaction in another session.
PREPARE_AFTER: Final = 3
#: Parameters of a connection that a URL may replace. Times are in seconds, `tcp_user_timeout` is in ms.
#: By default, Linux notices after 2 hours that an idle connection was cut without a message, and after 15
#: minutes if data was sent. A listener on such a connection would get no notifications until then.
DEFAULTS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "application_name": "dibs",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

#: The most seconds that `PostgresConnections.close` waits for statements whose callers were cancelled.
CLOSE_TIMEOUT: Final = 5.0
#: Seconds between two checks for an interrupt while the driver waits; the driver's own default.
INTERVAL: Final = 0.1

RV = TypeVar("RV")


class PooledConnection(AsyncConnection[Any]):
    """A connection whose statement runs to its end even if its caller is cancelled.

    Without this class, psycopg would open a second connection to cancel a statement that takes only a
    millisecond. Behind a pooler, that may cancel the statement of another client. And if the event loop
    closes meanwhile, the cancellation itself is interrupted, and psycopg prints a message to stderr.
    """

    #: True for a single statement, which runs to its end if its caller is cancelled. False for a transaction,
    #: which psycopg must roll back then.
    finish_when_cancelled = False
    #: The statement whose caller was cancelled and whose reply must still be read; None if there is none.
    unread: PQGen[Any] | None = None
    #: Enqueues of one job that this connection has run as an ordinary statement.
    single_enqueues = 0
    #: True if its session has the prepared statement of prepared_enqueue.py.
    has_enqueue = False

    async def wait(self, gen: PQGen[RV], interval: float = INTERVAL, timeout: float | None = None) -> RV:
        if not self.finish_when_cancelled:
            return await super().wait(gen, interval, timeout)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.unread = gen
            raise

    async def discard_reply(self) -> None:
        """Read and discard the reply of the statement in `unread`. Raise the driver's errors."""
        gen, self.unread = self.unread, None
        if gen is not None:
            await waiting.wait_async(gen, self.pgconn.socket, interval=INTERVAL)


class PostgresConnections:
    """The connections of one storage, for one event loop."""

    def __init__(self, address: PostgresAddress, errors: DriverErrors) -> None:
        self._address = address
        self._errors = errors
        self._idle: list[PooledConnection] = []
        self._free = asyncio.Semaphore(address.max_connections)
        #: True if the driver may prepare statements; False behind a pooler.
        self.prepares = True
        self._closed = False
        #: Tasks that discard the replies of cancelled callers.
        self._discarding: set[asyncio.Task[None]] = set()

    async def connect(self) -> PooledConnection:
        """Open a new connection, which does not belong to the pool. Raise StorageUnavailable."""
        try:
            params = DEFAULTS | await self._address.connection_params()
            connection = await PooledConnection.connect(**params, autocommit=True)
        except (psycopg.Error, OSError) as error:
            raise self._errors.to_connect_error(error) from None
        connection.prepare_threshold = PREPARE_AFTER if self.prepares else None
        return connection

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PooledConnection]:
        """Lend a connection for a `with` block. Wait if `max_connections` are lent already.

        A broken connection is closed after the block and not lent again.
        """
        await self._wait_for_turn()
        connection = None
        try:
            connection = self._idle_connection() or await self._connect_for_call()
            yield connection
        except StorageReadOnly:
            # After a failover, the server of this connection may be the standby. A new connection goes to the
            # primary if the URL names several hosts.
            if connection is not None:
                connection.pgconn.finish()
            raise
        finally:
            if connection is not None and connection.unread is not None and self._closed:
                # Nothing waits for a task of a closed pool. If the event loop ends, and cancels its tasks, it
                # would destroy a task that begins now.
                connection.pgconn.finish()
                self._free.release()
            elif connection is not None and connection.unread is not None:
                # The connection still counts towards `max_connections`, so that a caller who cancels often
                # opens no more connections than others.
                task = asyncio.ensure_future(self._discard_reply_and_return(connection))
                self._discarding.add(task)
                task.add_done_callback(self._discarding.discard)
            else:
                self._free.release()
                if connection is not None:
                    await self._return_connection(connection)

    def take_prepared(self) -> PooledConnection | None:
        """Return an idle connection that has the statement of an enqueue; None if this takes a wait.

        The caller returns it with `give_back`.
        """
        if self._closed or not self._idle or not self._idle[-1].has_enqueue or self._free.locked():
            return None
        connection = self._idle_connection()
        if connection is None:
            return None
        if not connection.has_enqueue or not _completes_at_once(self._free.acquire()):
            self._idle.append(connection)
            return None
        return connection

    def give_back(self, connection: PooledConnection) -> None:
        """Return a connection of `take_prepared`. It is closed if it is broken."""
        self._free.release()
        usable = not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            connection.pgconn.finish()

    async def _wait_for_turn(self) -> None:
        try:
            await self._free.acquire()
        except asyncio.CancelledError as error:
            mark_unsent(error, f"a connection: all {self._address.max_connections} are in use")
            raise

    async def _connect_for_call(self) -> PooledConnection:
        try:
            return await self.connect()
        except asyncio.CancelledError as error:
            mark_unsent(error, f"a new connection to {self._address.hosts}")
            raise

    def _idle_connection(self) -> PooledConnection | None:
        """Return an idle connection that is still open, or None.

        Unread data on an idle connection means that the server is closing it.
        """
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not has_unread_data(connection.fileno()):
                return connection
            connection.pgconn.finish()
        return None

    async def _return_connection(self, connection: PooledConnection) -> None:
        usable = not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        if usable and not self._closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def _discard_reply_and_return(self, connection: PooledConnection) -> None:
        """Read the reply to a cancelled caller, and then return the connection to the pool."""
        try:
            await connection.discard_reply()
        except (psycopg.Error, OSError):
            # Ignore the error, because its caller is gone. The connection may still be usable.
            pass
        except BaseException:
            connection.pgconn.finish()
            raise
        finally:
            self._free.release()
        await self._return_connection(connection)

    async def close(self) -> None:
        """Close idle connections now, and lent connections when they are returned."""
        self._closed = True
        # A caller that was cancelled just now returns its connection in the next iteration of the event loop.
        await asyncio.sleep(0)
        if self._discarding:
            await asyncio.wait(self._discarding, timeout=CLOSE_TIMEOUT)
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


def _completes_at_once(call: Coroutine[Any, Any, Any]) -> bool:
    """Run a coroutine up to its first pause. Return whether it has ended; else close it."""
    try:
        call.send(None)
    except StopIteration:
        return True
    call.close()
    return False


def has_unread_data(fileno: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([fileno], [], [], 0)[0])
    poll = select.poll()
    poll.register(fileno, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
