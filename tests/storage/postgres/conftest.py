"""Fixtures on a private Postgres: a new schema for each test, a storage on it, and connections of psycopg."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from dibs import Dibs, Queue
from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer, start_postgres
from dibs_conformance.servers.postgres import start_standby
from tests.storage.postgres.sql_programs import SqlProgram
from tests.storage.postgres.standby import Pair

_NUMBERS = count()


@pytest.fixture
def schema() -> str:
    """The name of a schema that does not exist yet."""
    return f"test_{next(_NUMBERS)}"


@pytest.fixture
def opening(postgres_server: PostgresServer, schema: str) -> Callable[..., PostgresStorage]:
    """Return a function that makes storages on the schema of this test. `options` are those of open_url."""

    def opened(**options: Any) -> PostgresStorage:
        return open_url(postgres_server.url, **{"schema": schema, **options})

    return opened


@pytest.fixture
async def storage(opening: Callable[..., PostgresStorage]) -> AsyncIterator[PostgresStorage]:
    async with opening() as storage:
        yield storage


@pytest.fixture
async def connect(postgres_server: PostgresServer, schema: str) -> AsyncIterator[Callable[[], Any]]:
    """Yield a function that opens a connection of psycopg with the schema as its search path.

    All connections are closed after the test.
    """
    opened: list[psycopg.AsyncConnection[Any]] = []

    async def one() -> psycopg.AsyncConnection[Any]:
        options = f"-c search_path={schema}"
        connection = await psycopg.AsyncConnection.connect(postgres_server.url, options=options)
        opened.append(connection)
        return connection

    yield one
    for connection in opened:
        await connection.close()


@pytest.fixture
async def connection(connect: Callable[[], Any]) -> Any:
    """A connection of psycopg with the schema as its search path, in autocommit mode."""
    opened = await connect()
    await opened.set_autocommit(True)
    return opened


@pytest.fixture
async def app(storage: PostgresStorage, postgres_server: PostgresServer, schema: str) -> AsyncIterator[Dibs]:
    async with Dibs(f"{postgres_server.url}?schema={schema}") as app:
        yield app


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("q")


@pytest.fixture
async def sql(
    storage: PostgresStorage, postgres_server: PostgresServer, schema: str
) -> AsyncIterator[SqlProgram]:
    connection = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
    async with connection:
        yield SqlProgram(connection, schema)


@pytest.fixture
def pair(postgres_server: PostgresServer) -> Iterator[Pair]:
    """A primary and a hot standby that streams from it, started for this test alone."""
    if not (postgres_server.found.path / "pg_basebackup").exists():
        pytest.skip(f"no pg_basebackup beside Postgres {postgres_server.version} to copy a primary with")
    with start_postgres() as primary, start_standby(primary) as standby:
        yield primary, standby
