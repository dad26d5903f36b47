"""Temporary schemas for the conformance kit and for tests, and connections for callers' transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from dibs.storage.postgres.network.address import parse_url
from dibs.storage.postgres.network.connections import ConnectionPool
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.registry import with_option


def temporary_url(url: str, name: str) -> str:
    """Return the URL with `name` as its schema."""
    return with_option(url, "schema", name)


@asynccontextmanager
async def connect_url(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open a connection for in_transaction(), outside of any storage. Raises StorageError."""
    address = parse_url(url, {})
    errors = DriverErrors(address.shown, address.hosts)
    try:
        connection = await psycopg.AsyncConnection.connect(**address.params)
    except (psycopg.Error, OSError) as error:
        raise errors.connection_failed(error) from None
    async with connection:
        yield connection


async def remove_url(url: str) -> None:
    """Drop the schema of a URL and all its tables. Raises StorageError."""
    address = parse_url(url, {})
    errors = DriverErrors(address.shown, address.hosts)
    connections = ConnectionPool(address.params, errors)
    try:
        async with connections.one() as connection:
            schema = sql.Identifier(address.schema)
            await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
    except psycopg.Error as error:
        raise errors.translate(error, writes=True, alive=True) from None
    finally:
        await connections.close()
