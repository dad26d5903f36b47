"""The migration of a schema, by the numbered SQL files in migrations/ that it does not have yet."""

from __future__ import annotations

import logging
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg import errors as pg

from dibs.errors import StorageTooNew, StorageUnavailable
from dibs.storage.postgres.queries import Migration, Queries, migrations

log: Final = logging.getLogger("dibs.storage.postgres")

#: Errors of a process that creates the schema, or its first table, while another one does.
CREATED_TWICE: Final = (pg.UniqueViolation, pg.DuplicateSchema, pg.DuplicateTable)


async def migrate(
    connection: AsyncConnection[Any], queries: Queries, url: str, *, allow_others: bool = False
) -> None:
    """Create the schema if it is missing, and apply the missing migrations, in one transaction.

    Several processes may call this at the same time: one of them migrates, and the others wait for it. After
    an error of CREATED_TWICE, call it again. Raise StorageTooNew if the schema has a migration that this
    version of dibs does not know, and StorageUnavailable if another role may put code into it, unless
    `allow_others` is True.
    """
    if not allow_others and (stranger := await find_stranger(connection, queries)):
        raise StorageUnavailable(
            f"{url}: {stranger}, so it could run code with the rights of the role of this process, "
            f"{connection.info.user!r}: connect as a member of the role that owns the schema, or open "
            "the storage with allow_others=1 if you trust it"
        )
    known = migrations()
    if await _latest_applied(connection, queries, url, known) < known[-1].number:
        await _apply_missing(connection, queries, url, known)


async def find_stranger(connection: AsyncConnection[Any], queries: Queries) -> str | None:
    """Say which role that this process need not trust may put code into the schema; None if there is none.

    An example: "the role 'ann' owns the schema 'dibs'".
    """
    found = await (await connection.execute(queries["strangers"], {"schema": queries.plain})).fetchone()
    if found is None:
        return None
    how, role = found
    return f"{'every role' if role == 'PUBLIC' else f'the role {role!r}'} {how} {queries.plain!r}"


async def _apply_missing(
    connection: AsyncConnection[Any], queries: Queries, url: str, known: tuple[Migration, ...]
) -> None:
    async with connection.transaction():
        await connection.execute(queries["unlimited"], {})
        has_schema, has_table = await _look(connection, queries)
        if has_table:
            await connection.execute(queries["lock"], {})
        elif not has_schema:
            await connection.execute(queries["create_schema"], {})
        latest = await _latest_applied(connection, queries, url, known)
        await connection.execute(queries["enter"], {})
        for migration in known:
            if migration.number > latest:
                await _apply_migration(connection, queries, migration)
        if latest < known[-1].number:
            log.info("%s: migrated the schema from layout %s to %s", url, latest, known[-1].number)


async def read_layout(connection: AsyncConnection[Any], queries: Queries) -> int:
    """Return the number of the latest migration in the schema, 0 for a new schema."""
    if not (await _look(connection, queries))[1]:
        return 0
    row = await (await connection.execute(queries["applied"], {})).fetchone()
    return (row[0] if row else None) or 0


async def _look(connection: AsyncConnection[Any], queries: Queries) -> tuple[bool, bool]:
    """Return whether the schema exists, and whether it has the table of the migrations."""
    row = await (await connection.execute(queries["known"], {"schema": queries.plain})).fetchone()
    assert row is not None, "the query has one row"  # noqa: S101
    return row[0], row[1]


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
