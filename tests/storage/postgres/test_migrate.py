"""Migrations: once each, by one process at a time, and never by a version that does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import StorageTooNew, StorageUnavailable
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.queries import Migration, function_files, migrations
from tests.storage.postgres.jobs import asked, claimed

Opening = Callable[..., PostgresStorage]


async def test_opening_again_changes_nothing(opening: Opening) -> None:
    async with opening() as storage:
        await storage.enqueue("q", [asked("a")])
    async with opening() as storage:
        assert ["a"] == [job.id for job in await claimed(storage)]


async def test_several_at_once_make_one_place(opening: Opening, connect: Callable[[], Any]) -> None:
    storages = [opening() for _ in range(6)]
    await asyncio.gather(*(storage.__aenter__() for storage in storages))
    await asyncio.gather(*(storage.__aexit__(None, None, None) for storage in storages))

    rows = await (await (await connect()).execute("SELECT number FROM migrations ORDER BY number")).fetchall()
    assert [(migration.number,) for migration in migrations()] == rows


async def test_a_place_of_a_newer_version_is_refused(opening: Opening, connect: Callable[[], Any]) -> None:
    async with opening():
        pass
    connection = await connect()
    await connection.execute("INSERT INTO migrations (number, name) VALUES (9999, 'from_the_future')")
    await connection.commit()

    with pytest.raises(StorageTooNew, match="layout 9999"):
        await opening().__aenter__()


async def test_a_later_layout_upgrades_a_place_and_keeps_its_jobs_and_grants(
    opening: Opening, connect: Callable[[], Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up next layout adds a column to `live`, and an argument to a function that applications call."""
    known, functions, connection = migrations(), function_files(), await connect()
    role = f"granted_{schema}"
    async with opening():
        await connection.execute("SELECT enqueue_job('q', 'a')")
        await connection.execute(f"CREATE ROLE {role}")
        await connection.execute(f"GRANT EXECUTE ON FUNCTION forget_job TO {role} WITH GRANT OPTION")
        await connection.commit()
    column = "ALTER TABLE live ADD COLUMN tenant text NOT NULL DEFAULT 'none'"
    change = f"{column}; DROP FUNCTION forget_job(text, text)"
    later = Migration(known[-1].number + 1, "made_up", change)
    longer = functions["sql_calls"].replace(
        "FUNCTION forget_job(queue text, id text)", "FUNCTION forget_job(queue text, id text, tenant text)"
    )
    monkeypatch.setattr("dibs.storage.postgres.migrate.migrations", lambda: (*known, later))
    monkeypatch.setattr(
        "dibs.storage.postgres.migrate.function_files", lambda: {**functions, "sql_calls": longer}
    )
    async with opening() as storage:
        assert ["a"] == [job.id for job in await claimed(storage)]
    monkeypatch.undo()

    assert (later.number,) == await (
        await connection.execute("SELECT max(number) FROM migrations")
    ).fetchone()
    assert ("none",) == await (await connection.execute("SELECT tenant FROM live")).fetchone()
    granted = await connection.execute(
        "SELECT p.pronargs, a.grantee::regrole::text, a.is_grantable FROM pg_proc p, aclexplode(p.proacl) a "
        "WHERE p.pronamespace = %s::regnamespace AND p.proname = 'forget_job' AND a.grantee <> p.proowner",
        [schema],
    )
    assert [(3, role, True)] == await granted.fetchall()
    await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await connection.commit()
    with pytest.raises(StorageTooNew, match=f"layout {later.number}"):
        await opening().__aenter__()


async def test_a_place_that_changed_under_way_is_told(opening: Opening, connect: Callable[[], Any]) -> None:
    async with opening() as storage:
        connection = await connect()
        await connection.execute("DROP FUNCTION reap(text, integer, bigint)")
        await connection.commit()

        with pytest.raises(StorageTooNew, match="with the same version"):
            await storage.reap("q", 1)


@pytest.mark.parametrize("made", ["", "CREATE SCHEMA {s}"])
async def test_a_schema_that_was_removed_is_said_so_and_exists_again_at_the_next_call(
    opening: Opening, connect: Callable[[], Any], schema: str, caplog: pytest.LogCaptureFixture, made: str
) -> None:
    async with opening() as storage:
        await storage.enqueue("q", [asked("a")])
        connection = await connect()
        await connection.execute(f"DROP SCHEMA {schema} CASCADE; {made.format(s=schema)}")
        await connection.commit()

        with pytest.raises(StorageUnavailable, match="was removed while it was open"):
            await storage.enqueue("q", [asked("b")])
        await storage.enqueue("q", [asked("b")])
        assert ["b"] == [job.id for job in await claimed(storage)]
    assert "it exists again, without the jobs of before" in caplog.text
