"""Errors of a transaction that belongs to the caller, and transactions that dibs does not expect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, Rollback, errors

from dibs.errors import OutcomeUnknown, Refused, StorageReadOnly, StorageUnavailable
from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.network.test_errors import blocked, kill
from tests.storage.postgres.retries import retried

Connect = Callable[[], Any]
Opening = Callable[..., PostgresStorage]
#: Selects the sessions that wait for a lock during an enqueue.
WAITING = "wait_event_type = 'Lock' AND query LIKE '%enqueue%'"


# -- errors of the caller's transaction ------------------------------------------------------------------


async def test_a_deadlock_is_the_driver_s_error_and_a_retry_succeeds(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a"), asked("b")])
    one, two = await connect(), await connect()
    both = asyncio.Barrier(2)
    calls: list[str] = []

    async def enqueue(connection: Any, first: str, second: str) -> None:
        calls.append(first)
        await storage.in_transaction(connection).enqueue("q", [asked(first)])
        if len(calls) <= 2:
            await both.wait()
        await storage.in_transaction(connection).enqueue("q", [asked(second)])

    await asyncio.gather(
        retried(one, lambda: enqueue(one, "a", "b"), tries=50),
        retried(two, lambda: enqueue(two, "b", "a"), tries=50),
    )
    # The retry may take its lock before the other transaction wakes up, and meet it again.
    assert len(calls) >= 3


async def test_a_lock_timeout_of_the_caller_is_the_driver_s_error(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a")])
    theirs, mine = await connect(), await connect()
    await storage.in_transaction(theirs).enqueue("q", [asked("a")])
    await mine.execute("SET LOCAL lock_timeout = '10ms'")
    with pytest.raises(errors.LockNotAvailable):
        await storage.in_transaction(mine).enqueue("q", [asked("a")])
    await mine.rollback()
    await mine.execute("SET LOCAL statement_timeout = '10ms'")
    with pytest.raises(errors.QueryCanceled):
        await storage.in_transaction(mine).enqueue("q", [asked("a")])


async def test_a_read_only_transaction_is_named(storage: PostgresStorage, connect: Connect) -> None:
    mine = await connect()
    await mine.set_read_only(True)
    with pytest.raises(StorageReadOnly, match="your transaction is read-only") as caught:
        await storage.in_transaction(mine).enqueue("q", [asked("a")])

    assert isinstance(caught.value.__cause__, errors.ReadOnlySqlTransaction)


# -- lost connections ------------------------------------------------------------------------------------


async def test_a_transaction_whose_connection_breaks_is_told_lost(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a")])
    holder, mine, killer = await connect(), await connect(), await connect()
    await holder.execute("SELECT * FROM live FOR UPDATE")
    await storage.in_transaction(mine).enqueue("q", [asked("new")])
    waiting = asyncio.create_task(storage.in_transaction(mine).enqueue("q", [asked("a")]))
    await blocked(killer)
    await kill(killer, WAITING)

    with pytest.raises(
        psycopg.OperationalError, match="transaction is lost: nothing of it is stored"
    ) as caught:
        await waiting
    await holder.rollback()
    assert isinstance(caught.value, StorageUnavailable)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert None is (await storage.get("q", ["new"]))[0].current


async def test_a_statement_in_autocommit_whose_connection_breaks_is_unknown(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a")])
    holder, mine, killer = await connect(), await connect(), await connect()
    await mine.set_autocommit(True)
    await holder.execute("SELECT * FROM live FOR UPDATE")
    waiting = asyncio.create_task(storage.in_transaction(mine).enqueue("q", [asked("a")]))
    await blocked(killer)
    await kill(killer, WAITING)

    with pytest.raises(OutcomeUnknown, match="connection was lost"):
        await waiting
    await holder.rollback()


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_closed_connection_is_told(
    storage: PostgresStorage, connect: Connect, *, autocommit: bool
) -> None:
    mine = await connect()
    await mine.set_autocommit(autocommit)
    await mine.close()

    with pytest.raises(psycopg.OperationalError, match="connection is closed") as caught:
        await storage.in_transaction(mine).enqueue("q", [asked("a")])
    assert isinstance(caught.value, StorageUnavailable)


# -- another database ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["empty", "own", "copy"])
async def test_a_connection_to_another_database_is_refused_by_name(
    storage: PostgresStorage, postgres_server: PostgresServer, schema: str, connect: Connect, layout: str
) -> None:
    """The other database may have no schema of dibs, one of its own, or a copy of the app's."""
    name = f"other_{schema}"
    admin = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
    await admin.execute(f"CREATE DATABASE {name}")
    url = postgres_server.url.replace("/postgres", f"/{name}")
    if layout != "empty":
        async with open_url(url, schema=schema) as other:
            await other.enqueue("q", [asked("z")])
    async with await psycopg.AsyncConnection.connect(url) as mine:
        if layout == "copy":
            (applied,) = await (
                await admin.execute(f"SELECT min(applied_at) FROM {schema}.migrations")
            ).fetchone()  # type: ignore[misc]
            await mine.execute(f"UPDATE {schema}.migrations SET applied_at = %s WHERE number = 1", [applied])
            await mine.commit()
        for verb, items in (("enqueue", [asked("a")]), ("settle", [await a_settlement(storage)])):
            with pytest.raises(
                Refused, match=f"database '{name}' at 127.0.0.1:{postgres_server.port}"
            ) as caught:
                await getattr(storage.in_transaction(mine), verb)("q", items)
            assert "connection" == caught.value.field
            await mine.rollback()
        if layout != "empty":
            found = await mine.execute(f"SELECT id FROM {schema}.live")
            assert [("z",)] == await found.fetchall()
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def a_settlement(storage: PostgresStorage) -> Any:
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    await storage.enqueue("q", [asked("a")])
    return done(job)


async def test_a_schema_that_was_removed_and_made_again_is_another_one(
    storage: PostgresStorage, opening: Opening, schema: str, connect: Connect
) -> None:
    """As with a test database that is dropped and created: an app opened before must not write to it."""
    mine = await connect()
    await mine.execute(f"DROP SCHEMA {schema} CASCADE")
    await mine.commit()
    async with opening():
        with pytest.raises(Refused, match="if its schema was made anew"):
            await storage.in_transaction(mine).enqueue("q", [asked("a")])


# -- savepoints, two-phase transactions, autocommit, threads ------------------------------------------------


async def test_a_savepoint_that_is_rolled_back_takes_its_enqueue_along(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    async with mine.transaction():
        await storage.in_transaction(mine).enqueue("q", [asked("a")])
        with suppress(Rollback):
            async with mine.transaction():
                await storage.in_transaction(mine).enqueue("q", [asked("a", b"2"), asked("b")])
                raise Rollback
        with suppress(errors.DivisionByZero):
            async with mine.transaction():
                await storage.in_transaction(mine).enqueue("q", [asked("c")])
                await mine.execute("SELECT 1 / 0")
        (again,) = await storage.in_transaction(mine).enqueue("q", [asked("c", b"3")])

    assert "queued" == again.status
    assert [("a", b"1"), ("c", b"3")] == [(job.id, job.data.payload) for job in await claimed(storage)]


async def test_a_two_phase_transaction_is_refused_before_its_first_statement(
    storage: PostgresStorage, connect: Connect
) -> None:
    """Postgres cannot prepare a transaction that has sent a notification."""
    mine = await connect()
    await mine.tpc_begin("dibs")
    with pytest.raises(Refused, match="two-phase") as caught:
        await storage.in_transaction(mine).enqueue("q", [asked("a")])

    assert "connection" == caught.value.field
    await mine.tpc_rollback()


async def test_in_autocommit_an_enqueue_takes_effect_at_once(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    await mine.set_autocommit(True)
    await storage.in_transaction(mine).enqueue("q", [asked("a")])
    await mine.close()

    assert ["a"] == [job.id for job in await claimed(storage)]


async def test_a_blocking_connection_of_another_thread_serves(
    storage: PostgresStorage, postgres_server: PostgresServer
) -> None:
    mine: psycopg.Connection[Any] = await asyncio.to_thread(lambda: psycopg.connect(postgres_server.url))
    await asyncio.to_thread(storage.in_transaction(mine).enqueue, "q", [asked("a")])
    mine.commit()
    mine.close()

    assert ["a"] == [job.id for job in await claimed(storage)]


async def test_blocking_connections_raise_the_same_errors(
    storage: PostgresStorage, postgres_server: PostgresServer
) -> None:
    await storage.enqueue("q", [asked("a")])
    with psycopg.connect(postgres_server.url) as mine:
        mine.isolation_level = IsolationLevel.SERIALIZABLE
        mine.execute("SELECT 1 FROM pg_class").fetchall()
        await claimed(storage)
        with pytest.raises(errors.SerializationFailure):
            storage.in_transaction(mine).enqueue("q", [asked("a")])
        mine.rollback()
        with pytest.raises(errors.DivisionByZero):
            mine.execute("SELECT 1 / 0")
        with pytest.raises(errors.InFailedSqlTransaction):
            storage.in_transaction(mine).enqueue("q", [asked("a")])
        mine.rollback()
        mine.execute("SELECT 1")
        with psycopg.connect(postgres_server.url) as killer:
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [mine.info.backend_pid])
        with pytest.raises(psycopg.OperationalError, match="nothing of it is stored"):
            storage.in_transaction(mine).enqueue("q", [asked("a")])
