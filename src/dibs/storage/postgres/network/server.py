"""The database of one Postgres storage: it is checked and migrated when it is opened, and runs statements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import BaseConnection

from dibs.errors import ConfigurationError, DibsError, NotRunning, Refused, StorageUnavailable
from dibs.model.error_text import summarize_exception
from dibs.storage.postgres import migrate
from dibs.storage.postgres.network.address import PostgresAddress
from dibs.storage.postgres.network.callers_errors import raising_callers_errors, refuse_other_database
from dibs.storage.postgres.network.connections import DEFAULTS, PooledConnection, PostgresConnections
from dibs.storage.postgres.network.errors import (
    CONFLICTS,
    OTHER_VERSION,
    ROLLED_BACK,
    STATEMENT_MODE,
    DriverErrors,
    ReadLost,
    first_line,
    retry_conflicts,
)
from dibs.storage.postgres.network.lock_waits import busy_error
from dibs.storage.postgres.network.prepared_enqueue import (
    PREPARE_AFTER,
    EnqueueInFlight,
    OnAnswer,
)
from dibs.storage.postgres.network.thread_connections import ThreadConnections
from dibs.storage.postgres.queries import Queries
from dibs.storage.read_limits import read_limit

log: Final = logging.getLogger("dibs.storage.postgres")

#: The warnings that this process has logged.
_warned: Final[set[str]] = set()
#: The oldest supported version, as `server_version_num` reports it.
OLDEST: Final = 130_000
#: Settings for a page, the same as {pinned} in queries.py. If the planner expects few rows, it would read all
#: rows and sort them: 50 ms with 100,000 rows instead of 0.5 ms.
PAGE_PLAN: Final = b"SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off"


class PostgresDatabase:
    """The connections to one database, and the queries for one schema in it."""

    def __init__(self, address: PostgresAddress) -> None:
        self.url = address.display_url
        self.queries = Queries(address.schema)
        self.durability = (
            "depends on the settings of the Postgres server, which are read when the storage is opened"
        )
        self._address = address
        self._errors = DriverErrors(self.url, address.hosts)
        #: The text that identifies the schema; set when the storage is opened.
        self.identity = ""
        #: True if a statement found that the schema was removed. The next statement creates it again.
        self._removed = False
        #: False behind PgBouncer in statement mode, where no transaction can pin the plan of a page.
        self._orders_pages = True
        self._connections: PostgresConnections | None = None
        #: The connections for threads; None if the storage is not open, or behind a pooler.
        self.for_threads: ThreadConnections | None = None
        #: Enqueues of start_enqueue() that are in flight.
        self._in_flight: set[EnqueueInFlight] = set()

    async def connection_params(self) -> dict[str, Any]:
        """Return the driver's parameters for a new connection, the password among them."""
        return await self._address.connection_params()

    # -- open and close ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, check version and settings of the server, and migrate the schema.

        Raise StorageError, or ConfigurationError for an encoding or an isolation level that dibs cannot use.
        """
        connections = PostgresConnections(self._address, self._errors)
        try:
            async with connections.borrow() as connection:
                try:
                    await self._check_server(connection, connections)
                    await self._migrate(connection)
                except psycopg.Error as error:
                    raise self._errors.to_storage_error(
                        error, writes=False, alive=not connection.closed
                    ) from None
        except BaseException:
            await connections.close()
            raise
        self._connections = connections
        if connections.prepares:
            self.for_threads = ThreadConnections(self._connect_prepared)

    async def _migrate(self, connection: PooledConnection) -> None:
        allow_others = self._address.allow_others
        await retry_conflicts(
            lambda: migrate.migrate(connection, self.queries, self.url, allow_others=allow_others),
            (*CONFLICTS, *migrate.CREATED_TWICE),
        )
        self.identity = (await run_statement(connection, self.queries["identity"], {}))[0][0]
        self._removed = False

    async def _check_server(self, connection: PooledConnection, connections: PostgresConnections) -> None:
        row = await (await connection.execute(self.queries["server"], {})).fetchone()
        assert row is not None, "the query has one row"  # noqa: S101
        number, version, encoding, pid, commits, fsync, isolation, standby = row
        if number < OLDEST:
            raise StorageUnavailable(f"{self.url} is Postgres {version}; dibs needs Postgres 13 or newer")
        if encoding != "UTF8":
            raise ConfigurationError(
                f"the database of {self.url} has the encoding {encoding}; use one with the encoding UTF8"
            )
        if isolation != "read committed":
            raise ConfigurationError(
                f"{self.url}: default_transaction_isolation is {isolation!r}; dibs needs 'read committed': "
                "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
            )
        # A pooler gives the client another pid than that of the server's process, so different pids show a
        # pooler.
        connections.prepares = pid == connection.info.backend_pid
        if not connections.prepares:
            connection.prepare_threshold = None
        self._report_durability(commits, fsync, standby=standby)

    def _report_durability(self, commits: str, fsync: str, *, standby: bool) -> None:
        """Set the sentence `durability` by the settings of the server. Warn if a crash may lose commits."""
        self.durability = f"what the server commits: synchronous_commit is {commits}, fsync is {fsync}"
        if commits == "off":
            self.durability += "; weak: a crash of the server may lose the newest commits"
        if fsync == "off":
            self.durability += "; weak: a crash of the machine may damage all data"
        if "weak" in self.durability:
            _warn_once(f"{self.url}: {self.durability}")
        if standby:
            _warn_once(f"{self.url} is a standby server: operations that write will fail")

    async def close(self) -> None:
        connections, self._connections = self._connections, None
        threads, self.for_threads = self.for_threads, None
        if threads is not None:
            await threads.close()
        for request in tuple(self._in_flight):
            request.abort()
        if connections is not None:
            await connections.close()

    @property
    def is_open(self) -> bool:
        return self._connections is not None

    def check_open(self) -> PostgresConnections:
        """Return the pool of connections. Raise NotRunning if the storage is not open."""
        if self._connections is None:
            raise NotRunning(f"{self.url} is not open; open it with `async with`")
        return self._connections

    # -- statements ----------------------------------------------------------------------------------

    async def connect(self) -> PooledConnection:
        """Open a connection outside of the pool, for a listener or a vacuum."""
        return await self.check_open().connect()

    def raising_callers_errors(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Convert psycopg's errors in a `with` block, except those of the caller's transaction."""
        return raising_callers_errors(connection, self._errors)

    def refuse_other_database(self, connection: BaseConnection[Any]) -> Refused:
        """Return the Refused for a caller's connection to a database without the schema of this storage."""
        return refuse_other_database(connection, self._errors)

    async def fetch(
        self, query: bytes, params: dict[str, Any], *, writes: bool, ordered: bool = False
    ) -> list[Any]:
        """Run one statement as a separate transaction, and return its rows.

        The statement runs to its end even if the caller is cancelled. With `writes` False, it is run a second
        time if its connection is lost. `ordered` reads a page in the order of an index.
        """
        try:
            return await self._fetch(query, params, writes=writes, ordered=ordered)
        except ReadLost:
            return await self._fetch(query, params, writes=writes, ordered=ordered)

    async def _fetch(self, query: bytes, params: dict[str, Any], *, writes: bool, ordered: bool) -> list[Any]:
        async with self.check_open().borrow() as connection:
            connection.finish_when_cancelled = True
            run = run_statement if writes else partial(run_read, ordered=ordered and self._orders_pages)
            try:
                await self._create_if_removed(connection)
                return await retry_conflicts(lambda: run(connection, query, params))
            except psycopg.Error as error:
                if ordered and STATEMENT_MODE in first_line(error):
                    # PgBouncer has closed the connection. The settings of a page only make it fast.
                    self._orders_pages = False
                    raise ReadLost(first_line(error)) from None
                raise await self._to_error(connection, error, writes=writes) from None

    async def write_lock_limited(self, name: str, params: dict[str, Any]) -> list[Any]:
        """Run the query of a verb as `fetch` does, with waits of at most `lock_ms` ms for a lock.

        Raise StorageBusy at a lock that another transaction holds for longer; nothing was changed then.
        """
        query = self.queries.lock_limited(name)
        async with self.check_open().borrow() as connection:
            connection.finish_when_cancelled = True
            try:
                await self._create_if_removed(connection)
                rows = await retry_conflicts(lambda: run_statement(connection, query, params), ROLLED_BACK)
                if name == "enqueue_one":
                    await self._prepare_enqueue(connection)
                return rows
            except psycopg.errors.LockNotAvailable:
                raise await busy_error(
                    connection, self.url, self.queries["lock_holders"], self.queries.plain
                ) from None
            except psycopg.Error as error:
                raise await self._to_error(connection, error, writes=True) from None

    async def _create_if_removed(self, connection: PooledConnection) -> None:
        if self._removed:
            await self._migrate(connection)
            log.warning("%s: the schema was removed; it exists again, without the jobs of before", self.url)

    async def _to_error(
        self, connection: PooledConnection, error: psycopg.Error, *, writes: bool
    ) -> DibsError:
        """Convert the error of a statement, and note whether it failed because the schema was removed."""
        alive = not connection.closed
        if alive and isinstance(error, OTHER_VERSION):
            with suppress(psycopg.Error):
                self._removed = await migrate.read_layout(connection, self.queries) == 0
        if self._removed:
            return self._errors.to_removed_error(first_line(error))
        return self._errors.to_storage_error(error, writes=writes, alive=alive)

    # -- the prepared statement of an enqueue ----------------------------------------------------------

    async def _prepare_enqueue(self, connection: PooledConnection) -> None:
        """Prepare the statement on a connection that is used for single enqueues, after a few of them."""
        connection.single_enqueues += 1
        if connection.single_enqueues == PREPARE_AFTER and self.check_open().prepares:
            try:
                await connection.execute(self.queries.prepared_enqueue())
                connection.has_enqueue = True
            except psycopg.Error:
                # The enqueue that came before is already answered. The next call notices a lost connection.
                log.debug("%s: could not prepare the statement of an enqueue", self.url, exc_info=True)

    async def _connect_prepared(self) -> PooledConnection:
        connection = await self.connect()
        try:
            await connection.execute(self.queries.prepared_enqueue())
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    def start_enqueue(self, values: Sequence[bytes | None], on_answer: OnAnswer) -> bool:
        """Send the statement on an idle connection, and call `on_answer` later; see EnqueueInFlight.

        Return False, and send nothing, if no idle connection has it.
        """
        connections = self.check_open()
        connection = connections.take_prepared()
        if connection is None:
            return False

        def answer(found: Sequence[bytes | None] | Exception) -> None:
            self._in_flight.discard(request)
            if isinstance(found, psycopg.errors.ReadOnlySqlTransaction):
                connection.pgconn.finish()  # see PostgresConnections.borrow
            if isinstance(found, psycopg.errors.InvalidSqlStatementName):
                connection.has_enqueue, connection.single_enqueues = False, 0
            connections.give_back(connection)
            on_answer(found)

        request = EnqueueInFlight(connection, asyncio.get_running_loop(), answer)
        self._in_flight.add(request)
        request.send(values)
        return True

    def to_write_error(self, error: Exception) -> DibsError:
        """Convert the error of a statement that writes and was sent."""
        if not isinstance(error, psycopg.Error):
            error = psycopg.OperationalError(summarize_exception(error))
        # An error without SQLSTATE is one of the connection.
        return self._errors.to_storage_error(error, writes=True, alive=error.sqlstate is not None)

    def run_blocking(self, query: bytes, params: dict[str, Any]) -> list[Any]:
        """Run one statement on a new blocking connection, on the caller's thread, and return its rows.

        The connection is closed.
        """
        try:
            connection_params = self._address.connection_params_blocking()
            with psycopg.connect(**DEFAULTS | connection_params, autocommit=True) as connection:
                return connection.execute(query, params).fetchall()
        except psycopg.OperationalError as error:
            raise self._errors.to_connect_error(error) from None
        except psycopg.Error as error:
            raise self._errors.to_storage_error(error, writes=False, alive=True) from None


def _warn_once(text: str) -> None:
    """Log a warning about a server once in this process: a web server may open a storage for each request."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)


async def run_read(
    connection: PooledConnection, query: bytes, params: dict[str, Any], *, ordered: bool = False
) -> list[Any]:
    """Run a statement that only reads. The server ends it at the limit of the context, if there is one.

    An `ordered` statement uses the order of an index, whatever the statistics of its tables say.
    """
    seconds = read_limit.get()
    if seconds is None and not ordered:
        return await run_statement(connection, query, params)
    # In a transaction, because behind a pooler a setting of the session would stay for another client.
    begin = b"BEGIN"
    if seconds is not None:
        begin += b"; SET LOCAL statement_timeout = %d" % max(1, round(seconds * 1000))
    if ordered:
        begin += b"; " + PAGE_PLAN
    await connection.execute(begin)
    try:
        rows = await run_statement(connection, query, params)
    except psycopg.Error:
        if not connection.closed:
            await connection.execute(b"ROLLBACK")
        raise
    await connection.execute(b"COMMIT")
    return rows


async def run_statement(connection: PooledConnection, query: bytes, params: dict[str, Any]) -> list[Any]:
    """Run one statement, and return its rows in the binary format, in which payloads are bytes."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
