"""Bringing a schema up to this version: numbered files, each once, by one process at a time."""

from __future__ import annotations

import logging
from typing import Any, Final

from psycopg import AsyncConnection

from dibs.errors import StorageTooNew
from dibs.storage.postgres.queries import Migration, Queries, migrations

log: Final = logging.getLogger("dibs.storage.postgres")

Connection = AsyncConnection[Any]


async def prepare(connection: Connection, queries: Queries, place: str) -> None:
    """Apply what is missing. Raises StorageTooNew when the schema has migrations we do not know.

    All of it is one transaction under a lock that goes with it: several processes may prepare at once, and
    one that dies leaves nothing half done.
    """
    ours = migrations()
    if await _applied(connection, queries, place, ours) == ours[-1].number:
        return
    async with connection.transaction():
        await connection.execute(queries["lock"], {})
        done = await _applied(connection, queries, place, ours)
        await connection.execute(queries["create_schema"], {})
        await connection.execute(queries["enter"], {})
        for migration in ours:
            if migration.number > done:
                await _apply(connection, queries, migration)
        if done < ours[-1].number:
            log.info("%s: brought from layout %s to %s", place, done, ours[-1].number)


async def _applied(connection: Connection, queries: Queries, place: str, ours: tuple[Migration, ...]) -> int:
    """Return the number of the latest migration that stands in the schema, 0 for a new one."""
    found = await connection.execute(queries["known"], {"schema": queries.plain})
    row = await found.fetchone()
    if row is None or not row[0]:
        return 0
    row = await (await connection.execute(queries["applied"], {})).fetchone()
    number: int = (row[0] if row else None) or 0
    if number > ours[-1].number:
        raise StorageTooNew(
            f"{place} has layout {number}; this version of dibs knows {ours[-1].number}: upgrade dibs here"
        )
    return number


async def _apply(connection: Connection, queries: Queries, migration: Migration) -> None:
    # Without parameters, so that a file may hold many statements and percent signs.
    await connection.execute(queries.filled(migration.text).encode())
    await connection.execute(queries["applied_now"], {"number": migration.number, "name": migration.name})
