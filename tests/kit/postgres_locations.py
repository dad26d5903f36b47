"""Opens locations of the kit on a real Postgres: each is a schema.

A schema takes 0.1 s to create, and its functions take as long again until each has run once. The state
machine needs several locations for each example, so it gets schemas that were emptied, and connections that
have prepared their functions. Each opening is a new storage nevertheless. A location with the system clock
gets a new schema, unless it was opened with a manual clock before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, cast

import psycopg

from dibs.storage.postgres.line_starts import LineStarts
from dibs.storage.postgres.network.address import PostgresAddress, parse_url
from dibs.storage.postgres.network.connections import PostgresConnections
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.postgres.network.server import PostgresDatabase
from dibs.storage.postgres.storage import PostgresStorage
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import connect, open_storage, with_option

WIPE: Final = """
DELETE FROM {0}.live; DELETE FROM {0}.ended; DELETE FROM {0}.leases; DELETE FROM {0}.request_keys;
DELETE FROM {0}.events; DELETE FROM {0}.queues; DELETE FROM {0}.clocks; DELETE FROM {0}.freed;
DELETE FROM {0}.costs; DELETE FROM {0}.claims; DELETE FROM {0}.marks; DELETE FROM {0}.key_sets;
DELETE FROM {0}.output;
SELECT setval('{0}.numbers', 0, false), setval('{0}.seen', 0, false), setval('{0}.lead', 0)
"""
#: A closed location may be opened again. Its schema is reused after this number of other locations was
#: closed.
RESERVE: Final = 3


class PostgresLocations:
    """A function `open_storage(location, clock)` that can be pickled for other processes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._schemas: dict[str, str] = {}
        self._closed: list[str] = []
        #: The number of storages that are open at each location.
        self._open: Counter[str] = Counter()
        self._connections: PostgresConnections | None = None
        #: True if another process has a copy, and may make schemas.
        self._is_shared = False

    def __getstate__(self) -> dict[str, Any]:
        """Keep the names of the schemas. The other process makes connections of its own."""
        self._is_shared = True
        return {**PostgresLocations(self._url).__dict__, "_schemas": dict(self._schemas)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections._idle if self._connections is not None else ():
            connection.pgconn.finish()

    def __repr__(self) -> str:
        return "postgres, a schema for each location"

    def __call__(self, location: str, clock: Clock) -> Storage:
        if clock == "system":
            return open_storage(self._url, clock, schema=self._schemas.get(location, location))
        return cast("Storage", Kept(self, location))

    def connect(self, location: str) -> AbstractAsyncContextManager[Any] | None:
        """Return a connection of the caller, to try transactions."""
        return connect(with_option(self._url, "schema", location))

    def address(self, location: str) -> PostgresAddress:
        return parse_url(self._url, {"schema": self._schemas.get(location, location)})

    async def take(self, location: str) -> PostgresConnections:
        """Give the location an empty schema, or the one it has already."""
        if self._connections is None:
            address = self.address(location)
            self._connections = PostgresConnections(address, DriverErrors(address.display_url, address.hosts))
        self._open[location] += 1
        if self._open[location] > 1:
            pass
        elif location in self._closed:
            self._closed.remove(location)
        elif location in self._schemas or (self._is_shared and self._is_made(location)):
            self._schemas.setdefault(location, location)
        elif len(self._closed) > RESERVE:
            schema = self._schemas[location] = self._schemas.pop(self._closed.pop(0))
            async with self._connections.borrow() as connection:
                await connection.execute(WIPE.format(f'"{schema}"').encode())
        else:
            self._schemas[location] = location
            async with open_storage(self._url, "manual", schema=location):
                pass
        return self._connections

    def _is_made(self, location: str) -> bool:
        """Return whether another process has made a schema for this location."""
        with psycopg.connect(self._url) as connection:
            query = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
            return connection.execute(query, [location]).fetchone() == (1,)

    def leave(self, location: str) -> None:
        self._open[location] -= 1
        if not self._open[location]:
            self._closed.append(location)


class Kept:
    """A storage on a schema that is not removed when the storage closes."""

    def __init__(self, locations: PostgresLocations, location: str) -> None:
        self._locations, self._location = locations, location

    async def __aenter__(self) -> Storage:
        connections = await self._locations.take(self._location)
        address = self._locations.address(self._location)
        storage = PostgresStorage(address, clock="manual")
        server = storage._server = storage._waits.server = WarmServer(address, connections)
        storage._waits.listener._connect = server.connect
        storage._starts = EagerStarts(server, manual=True)
        self._storage = storage
        return await storage.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._storage.__aexit__(kind, error, trace)
        self._locations.leave(self._location)


class EagerStarts(LineStarts):
    """Raises the starts of a queue after each claim of jobs, while the next verbs run."""

    def count(self, queue: str, claimed: int, active: int) -> None:
        if claimed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.run([queue]))


class WarmServer(PostgresDatabase):
    """A server with connections that are open already."""

    def __init__(self, address: PostgresAddress, connections: PostgresConnections) -> None:
        super().__init__(address)
        self._warm = connections

    async def open(self) -> None:
        self._connections = self._warm

    async def close(self) -> None:
        """Keep the connections open for the next storage."""
        self._connections = None
