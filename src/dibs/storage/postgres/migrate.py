"""The migration of a schema: the numbered files in migrations/ that it lacks, and the files in functions/.

A numbered file makes or changes tables, types and indexes, and never changes after a release. The functions
and views are replaced by those of this version as a whole, if they differ. A numbered file drops a function
whose arguments or result change; the rights that were granted on it are granted again.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection
from psycopg import errors as pg

from dibs.errors import StorageError, StorageTooNew, StorageUnavailable
from dibs.storage.postgres.queries import (
    Migration,
    Queries,
    function_files,
    functions_hash,
    migrations,
)

log: Final = logging.getLogger("dibs.storage.postgres")

#: Errors of a process that creates the schema, or its first table, while another one does.
CREATED_TWICE: Final = (pg.UniqueViolation, pg.DuplicateSchema, pg.DuplicateTable)


async def migrate(
    connection: AsyncConnection[Any], queries: Queries, url: str, *, allow_others: bool = False
) -> None:
    """Create the schema if it is missing, and bring it to the layout of this version, in one transaction.

    Several processes may call this at the same time: one of them migrates, and the others wait for it. After
    an error of CREATED_TWICE, call it again. Raise StorageTooNew if the schema has a migration that this
    version of dibs does not know, StorageUnavailable if another role may put code into it, unless
    `allow_others` is True, and StorageError if the role may not change the schema.
    """
    if not allow_others and (stranger := await find_stranger(connection, queries)):
        raise StorageUnavailable(
            f"{url}: {stranger}, so it could run code with the rights of the role of this process, "
            f"{connection.info.user!r}: connect as a member of the role that owns the schema, or open "
            "the storage with allow_others=1 if you trust it"
        )
    if await _read_checked(connection, queries, url) == _current():
        return
    try:
        await _bring_up(connection, queries, url)
    except pg.InsufficientPrivilege as error:
        raise StorageError(
            f"{url}: this role may not bring the schema to the layout of this version of dibs: run "
            f"`dibs migrate` with the role that owns it: {error.diag.message_primary}"
        ) from None


async def find_stranger(connection: AsyncConnection[Any], queries: Queries) -> str | None:
    """Say which role that this process need not trust may put code into the schema; None if there is none.

    An example: "the role 'ann' owns the schema 'dibs'".
    """
    found = await (await connection.execute(queries["strangers"], {"schema": queries.plain})).fetchone()
    if found is None:
        return None
    how, role = found
    return f"{'every role' if role == 'PUBLIC' else f'the role {role!r}'} {how} {queries.plain!r}"


class _Layout(NamedTuple):
    """The number of the latest migration in a schema, 0 for a new schema, and a hash of its functions."""

    number: int
    functions: str | None


def _current() -> _Layout:
    """Return the layout that this version makes."""
    return _Layout(migrations()[-1].number, functions_hash(function_files()))


async def _bring_up(connection: AsyncConnection[Any], queries: Queries, url: str) -> None:
    async with connection.transaction():
        await connection.execute(queries["unlimited"], {})
        has_schema, has_table = await _look(connection, queries)
        if has_table:
            await connection.execute(queries["lock"], {})
        elif not has_schema:
            await connection.execute(queries["create_schema"], {})
        before, wanted = await _read_checked(connection, queries, url), _current()
        if before == wanted:
            return
        await connection.execute(queries["enter"], {})
        grants = await _fetch(connection, queries, "grants")
        for migration in migrations():
            if migration.number > before.number:
                await _apply_migration(connection, queries, migration)
        await _replace_functions(connection, queries)
        kept = {name for (name,) in await _fetch(connection, queries, "functions")}
        for name, grant in grants:
            if name in kept:
                await connection.execute(grant.encode())
        await connection.execute(queries["functions_now"], {"hash": wanted.functions})
        log.info("%s: migrated the schema from layout %s to %s", url, before.number, wanted.number)


async def _replace_functions(connection: AsyncConnection[Any], queries: Queries) -> None:
    await connection.execute(queries["unchecked"], {})
    for text in function_files().values():
        await connection.execute(queries.fill_in(text).encode())


async def _fetch(connection: AsyncConnection[Any], queries: Queries, name: str) -> list[tuple[Any, ...]]:
    return await (await connection.execute(queries[name], {"schema": queries.plain})).fetchall()


async def read_layout(connection: AsyncConnection[Any], queries: Queries) -> int:
    """Return the number of the latest migration in the schema, 0 for a new schema."""
    return (await _read(connection, queries)).number


async def _read(connection: AsyncConnection[Any], queries: Queries) -> _Layout:
    if not (await _look(connection, queries))[1]:
        return _Layout(0, None)
    row = await (await connection.execute(queries["applied"], {})).fetchone()
    return _Layout(0, None) if row is None else _Layout(*row)


async def _look(connection: AsyncConnection[Any], queries: Queries) -> tuple[bool, bool]:
    """Return whether the schema exists, and whether it has the table of the migrations."""
    row = await (await connection.execute(queries["known"], {"schema": queries.plain})).fetchone()
    assert row is not None, "the query has one row"  # noqa: S101
    return row[0], row[1]


async def _read_checked(connection: AsyncConnection[Any], queries: Queries, url: str) -> _Layout:
    """Return the layout of the schema. Raise StorageTooNew if a newer version of dibs has made it."""
    found, known = await _read(connection, queries), migrations()[-1].number
    if found.number > known:
        raise StorageTooNew(
            f"{url} has layout {found.number}, and this version of dibs knows layouts up to {known}: "
            "upgrade dibs here"
        )
    return found


async def _apply_migration(connection: AsyncConnection[Any], queries: Queries, migration: Migration) -> None:
    # Pass no parameters: with parameters, psycopg accepts only one statement and interprets percent signs.
    await connection.execute(queries.fill_in(migration.text).encode())
    await connection.execute(queries["applied_now"], {"number": migration.number, "name": migration.name})
