"""The server of a place: opened once, asked what it is, and given one statement at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import BaseConnection

from dibs.errors import ConfigurationError, NotRunning, StorageUnavailable
from dibs.storage.postgres import migrate
from dibs.storage.postgres.network import errors as gate
from dibs.storage.postgres.network.address import Address
from dibs.storage.postgres.network.connections import Connection, Connections
from dibs.storage.postgres.network.errors import Gate, ReadLost
from dibs.storage.postgres.queries import Queries

log: Final = logging.getLogger("dibs.storage.postgres")

OLDEST: Final = 130_000


class Server:
    """Connections to one place, and what its server promises."""

    def __init__(self, address: Address) -> None:
        self.url = address.shown
        self.queries = Queries(address.schema)
        self.durability = "as the Postgres server is configured: known once it is open"
        self._address = address
        self._gate = Gate(self.url, address.hosts)
        self._connections: Connections | None = None

    # -- open and close ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, look what it is, and bring the schema up to date. Raises StorageError."""
        connections = Connections(self._address.params, self._gate)
        try:
            async with connections.one() as connection:
                try:
                    await self._look(connection, connections)
                    await gate.again(lambda: migrate.prepare(connection, self.queries, self.url))
                except psycopg.Error as error:
                    raise self._gate.crossed(error, writes=False, alive=not connection.closed) from None
        except BaseException:
            await connections.close()
            raise
        self._connections = connections

    async def _look(self, connection: Connection, connections: Connections) -> None:
        row = await (await connection.execute(self.queries["server"], {})).fetchone()
        assert row is not None, "the query has one row"  # noqa: S101
        number, version, encoding, pid, commits, fsync, isolation, standby = row
        if number < OLDEST:
            raise StorageUnavailable(
                f"{self.url} is Postgres {version}: too old, 13 is the oldest that will do"
            )
        if encoding != "UTF8":
            raise ConfigurationError(f"{self.url} is encoded in {encoding}; use a database in UTF8")
        if isolation != "read committed":
            raise ConfigurationError(
                f"{self.url}: default_transaction_isolation is {isolation!r}; dibs needs 'read committed': "
                "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
            )
        # A pooler tells a pid of its own making.
        connections.prepares = pid == connection.info.backend_pid
        if not connections.prepares:
            connection.prepare_threshold = None
        self._say(commits, fsync, standby=standby)

    def _say(self, commits: str, fsync: str, *, standby: bool) -> None:
        """Put the durability into words, and say it aloud when it is weak."""
        self.durability = f"what the server commits: synchronous_commit is {commits}, fsync is {fsync}"
        if commits == "off":
            self.durability += "; weak: the last moments before a crash of the server may be lost"
        if fsync == "off":
            self.durability += "; weak: a crash of the machine may damage everything"
        if "weak" in self.durability:
            log.warning("%s: %s", self.url, self.durability)
        if standby:
            log.warning("%s is a standby: it can be read, not written", self.url)

    async def close(self) -> None:
        """Close every connection."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    def check_open(self) -> Connections:
        """Return the connections. Raises NotRunning."""
        if self._connections is None:
            raise NotRunning(f"{self.url} is not open")
        return self._connections

    # -- statements ----------------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """Open a connection of one's own."""
        return await self.check_open().connect()

    @contextmanager
    def crossing(self, connection: BaseConnection[Any]) -> Iterator[None]:
        """Turn what the driver raises on a connection of the caller's into our errors."""
        try:
            yield
        except psycopg.Error as error:
            raise self._gate.crossed(error, writes=True, alive=not connection.closed) from error

    async def fetch(self, query: bytes, params: dict[str, Any], *, writes: bool) -> list[Any]:
        """Run one statement, which is one transaction, and return its rows.

        It runs to its end also when the caller is cancelled. One that only reads is run again, once, if its
        connection is lost.
        """
        try:
            return await self._fetch(query, params, writes=writes)
        except ReadLost:
            return await self._fetch(query, params, writes=writes)

    async def _fetch(self, query: bytes, params: dict[str, Any], *, writes: bool) -> list[Any]:
        async with self.check_open().one() as connection:
            connection.goes_on = True
            try:
                return await gate.again(lambda: run(connection, query, params))
            except psycopg.Error as error:
                raise self._gate.crossed(error, writes=writes, alive=not connection.closed) from None

    def run_blocking(self, query: bytes, params: dict[str, Any]) -> None:
        """Run one statement on a connection for it alone, on the caller's thread: rarely needed."""
        try:
            with psycopg.connect(**self._address.params, autocommit=True) as connection:
                connection.execute(query, params)
        except psycopg.OperationalError as error:
            raise self._gate.unreachable(error) from None
        except psycopg.Error as error:
            raise self._gate.crossed(error, writes=False, alive=True) from None


async def run(connection: Connection, query: bytes, params: dict[str, Any]) -> list[Any]:
    """Run one statement and return its rows, in the binary format: payloads are bytes."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
