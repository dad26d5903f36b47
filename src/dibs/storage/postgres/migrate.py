"""The migration of a schema, by the numbered SQL files in migrations/ that it does not have yet."""

from __future__ import annotations

import logging
from typing import Any, Final

from psycopg import AsyncConnection

from dibs.errors import StorageTooNew
from dibs.storage.postgres.queries import Migration, Queries, migrations

log: Final = logging.getLogger("dibs.storage.postgres")


async def migrate(connection: AsyncConnection[Any], queries: Queries, url: str) -> None:
    """Create the schema if it is missing, and apply the missing migrations, in one transaction.

    Several processes may call this at the same time: an advisory lock lets one process migrate. Raise
    StorageTooNew if the schema has a migration that this version of dibs does not know.
    """
    known = migrations()
    if await _latest_applied(connection, queries, url, known) == known[-1].number:
        return
    async with connection.transaction():
        await connection.execute(queries["lock"], {})
        latest = await _latest_applied(connection, queries, url, known)
        await connection.execute(queries["create_schema"], {})
        await connection.execute(queries["enter"], {})
        for migration in known:
            if migration.number > latest:
                await _apply_migration(connection, queries, migration)
        if latest < known[-1].number:
            log.info("%s: migrated the schema from layout %s to %s", url, latest, known[-1].number)


async def read_layout(connection: AsyncConnection[Any], queries: Queries) -> int:
    """Return the number of the latest migration in the schema, 0 for a new schema."""
    found = await connection.execute(queries["known"], {"schema": queries.plain})
    row = await found.fetchone()
    if row is None or not row[0]:
        return 0
    row = await (await connection.execute(queries["applied"], {})).fetchone()
    return (row[0] if row else None) or 0


async def _latest_applied(
    connection: AsyncConnection[Any], queries: Queries, url: str, known: tuple[Migration, ...]
) -> int:
    """Return the number of the latest migration in the schema, 0 for a new schema. Raise StorageTooNew."""
    number = await read_layout(connection, queries)
    if number > known[-1].number:
        raise StorageTooNew(
            f"{url} has layout {number}, and this version of dibs knows layouts up to {known[-1].number}: "
            "upgrade dibs here"
        )
    return number


async def _apply_migration(connection: AsyncConnection[Any], queries: Queries, migration: Migration) -> None:
    # Pass no parameters: with parameters, psycopg accepts only one statement and interprets percent signs.
    await connection.execute(queries.fill_in(migration.text).encode())
    await connection.execute(queries["applied_now"], {"number": migration.number, "name": migration.name})
