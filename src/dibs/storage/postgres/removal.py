"""Places of one's own, made and taken away: for the kit and for tests, never on the way of a job."""

from __future__ import annotations

import psycopg
from psycopg import sql

from dibs.storage.postgres.address import read
from dibs.storage.postgres.connections import Connections
from dibs.storage.postgres.gate import Gate
from dibs.storage.registry import with_option


def place_url(url: str, name: str) -> str:
    """Return the URL with this name as its schema."""
    return with_option(url, "schema", name)


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
