"""Creation and removal of temporary storages for the conformance kit and for tests.

Each uses the database in the URL that the user gives, with a schema of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from dibs.storage.postgres.network.address import parse_url
from dibs.storage.postgres.network.connections import PostgresConnections
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.registry import with_option


def temporary_url(url: str, name: str) -> str:
    """Return the URL with `name` as its schema, so that its tables are separate from those of `url`."""
    return with_option(url, "schema", name)


@asynccontextmanager
async def connect_url(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open a separate psycopg connection, which the kit passes to in_transaction(). Raise StorageError."""
    address = parse_url(url, {})
    errors = DriverErrors(address.display_url, address.hosts)
    try:
        connection = await psycopg.AsyncConnection.connect(**address.params)
    except (psycopg.Error, OSError) as error:
        raise errors.to_connect_error(error) from None
    async with connection:
        yield connection


async def remove_url(url: str) -> None:
    """Drop the schema of a URL with all its tables. Raise StorageError if the server refuses."""
    address = parse_url(url, {})
    errors = DriverErrors(address.display_url, address.hosts)
    connections = PostgresConnections(address, errors)
    try:
        async with connections.borrow() as connection:
            schema = sql.Identifier(address.schema)
            await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
    except psycopg.Error as error:
        raise errors.to_storage_error(error, writes=True, alive=True) from None
    finally:
        await connections.close()
