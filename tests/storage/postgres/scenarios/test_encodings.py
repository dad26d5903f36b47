"""Roles, connections and databases whose encoding is LATIN1."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from dibs.errors import ConfigurationError, UnknownOption
from dibs.storage.postgres import PostgresStorage, open_url
from dibs.storage.registry import with_option
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked

#: A character outside LATIN1.
ID = "é😀"


@pytest.fixture
async def latin_role(postgres_server: PostgresServer, schema: str) -> AsyncIterator[str]:
    """Yield the URL of a role whose default for client_encoding is LATIN1."""
    connection = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
    async with connection:
        await connection.execute("CREATE ROLE latin SUPERUSER LOGIN PASSWORD 'latin'")
        await connection.execute("ALTER ROLE latin SET client_encoding = 'LATIN1'")
        host = postgres_server.url.rpartition("@")[2]
        yield with_option(f"postgresql://latin:latin@{host}", "schema", schema)
        await connection.execute("REASSIGN OWNED BY latin TO CURRENT_USER")
        await connection.execute("DROP ROLE latin")


async def test_a_role_with_another_encoding_keeps_every_character(latin_role: str) -> None:
    async with open_url(latin_role) as storage:
        await storage.enqueue(ID, [asked(ID)])

        assert [ID] == [id for id, _ in (await storage.list(ID, "waiting")).items]


async def test_another_encoding_in_the_url_is_refused(postgres_server: PostgresServer) -> None:
    with pytest.raises(UnknownOption, match="client_encoding"):
        open_url(with_option(postgres_server.url, "client_encoding", "latin1"))
    open_url(with_option(postgres_server.url, "client_encoding", "utf8"))


async def test_a_connection_of_the_caller_with_another_encoding(
    storage: PostgresStorage, latin_role: str
) -> None:
    """Characters that its encoding has are stored; for others the error names the setting."""
    connection = await psycopg.AsyncConnection.connect(latin_role.partition("?")[0], client_encoding="LATIN1")
    async with connection:
        transaction = storage.in_transaction(connection)
        await transaction.enqueue("q", [asked("é")])
        with pytest.raises(ConfigurationError, match="client_encoding=UTF8"):
            await transaction.enqueue("q", [asked(ID)])
        await connection.commit()

    assert ["é"] == [id for id, _ in (await storage.list("q", "waiting")).items]


async def test_a_database_with_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    connection = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
    async with connection:
        await connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        url = f"{postgres_server.url.rpartition('/')[0]}/latin"
        with pytest.raises(ConfigurationError, match="UTF8"):
            async with open_url(url):
                pass
        await connection.execute("DROP DATABASE latin")
