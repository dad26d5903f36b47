"""What the kit and tests need of a place: one of their own, its end, and a connection beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from dibs.storage.postgres.network.address import read
from dibs.storage.postgres.network.connections import Connections
from dibs.storage.postgres.network.errors import Gate
from dibs.storage.registry import with_option


def place_url(url: str, name: str) -> str:
    """Return the URL with this name as its schema."""
    return with_option(url, "schema", name)


@asynccontextmanager
async def connect_url(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open a connection of the caller's own, to be joined. Raises StorageError."""
    address = read(url, {})
    gate = Gate(address.shown, address.hosts)
    try:
        connection = await psycopg.AsyncConnection.connect(**address.params)
    except (psycopg.Error, OSError) as error:
        raise gate.unreachable(error) from None
    async with connection:
        yield connection


async def remove_url(url: str) -> None:
    """Drop the schema of a URL with everything in it. Raises StorageError."""
    address = read(url, {})
    gate = Gate(address.shown, address.hosts)
    connections = Connections(address.params, gate)
    try:
        async with connections.one() as connection:
            schema = sql.Identifier(address.schema)
            await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
    except psycopg.Error as error:
        raise gate.crossed(error, writes=True, alive=True) from None
    finally:
        await connections.close()
