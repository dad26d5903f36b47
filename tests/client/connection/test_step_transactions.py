"""`connection=` stores the result of a step in the caller's transaction, tested on a Postgres server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from dibs import Dibs, LeaseLost, Refused
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.client.calls.run_steps import decode_memo
from dibs.client.connection.transactions import StepTransactions
from dibs_conformance.servers import PostgresServer

_NUMBERS = count()


@pytest.fixture
async def app(postgres_server: PostgresServer) -> AsyncIterator[Dibs]:
    async with Dibs(f"{postgres_server.url}?schema=steps_{next(_NUMBERS)}") as app:
        yield app


@pytest.fixture
async def mine(postgres_server: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
        await connection.execute("DROP TABLE IF EXISTS charges")
        await connection.execute("CREATE TABLE charges (id text)")
        await connection.commit()
        yield connection


@pytest.fixture
def blocking(
    postgres_server: PostgresServer, mine: psycopg.AsyncConnection[Any]
) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.url) as connection:
        yield connection


@pytest.fixture
async def job(app: Dibs) -> CurrentJob:
    await app.queue("q").enqueue(1, id="a")
    return await claim(app)


async def claim(app: Dibs) -> CurrentJob:
    lease = (await app.storage.grant(["q"], 60_000, "test")).lease
    [job] = (await app.storage.claim("q", lease, 1)).jobs
    return CurrentJob(
        RunEnvironment(app.storage, "q", asyncio.get_running_loop(), join=StepTransactions), job, None
    )


async def steps_of(app: Dibs) -> dict[str, bytes]:
    [slot] = await app.storage.get("q", ["a"])
    assert slot.current is not None
    return decode_memo(slot.current.data.memo)


async def charge(connection: psycopg.AsyncConnection[Any], name: str) -> str:
    await connection.execute("INSERT INTO charges VALUES (%s)", [name])
    return f"charged {name}"


async def test_the_effect_and_the_result_of_a_step_commit_together(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    async with mine.transaction():
        assert "charged x" == await job.step("charge", charge, mine, "x", connection=mine)
        assert {} == await steps_of(app)

    assert {"charge": b'"charged x"'} == await steps_of(app)
    assert "shipped" == await job.step("ship", lambda: "shipped")
    assert ["charge", "ship"] == sorted(await steps_of(app))


async def test_a_rollback_undoes_both_and_the_step_may_be_tried_again(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    for _ in range(2):
        await job.step("charge", charge, mine, "x", connection=mine)
        await mine.rollback()
    await job.step("ship", lambda: "shipped")

    assert ["ship"] == list(await steps_of(app))
    assert 0 == len(await (await mine.execute("SELECT FROM charges")).fetchall())


async def test_a_step_on_a_connection_in_autocommit_mode_is_stored_at_once(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    await mine.set_autocommit(True)
    await job.step("charge", charge, mine, "x", connection=mine)
    await job.step("charge again", charge, mine, "x", connection=mine)

    assert ["charge", "charge again"] == sorted(await steps_of(app))


async def test_the_next_step_is_refused_while_the_transaction_is_open(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    calls: list[int] = []
    await job.step("charge", charge, mine, "x", connection=mine)
    with pytest.raises(Refused, match="'charge' of q/a is still open"):
        await job.step("ship", calls.append, 1)
    with pytest.raises(Refused, match="still open"):
        await job.step("ship", calls.append, 1, connection=mine)
    await mine.commit()
    await job.step("ship", calls.append, 1)

    assert [1] == calls
    assert ["charge", "ship"] == sorted(await steps_of(app))


async def test_a_step_at_the_same_time_waits_and_keeps_the_joined_result(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    begun, stored = asyncio.Event(), asyncio.Event()

    async def other() -> int:
        begun.set()
        await stored.wait()
        return 5

    running = asyncio.create_task(job.step("other", other))
    await begun.wait()
    await job.step("charge", charge, mine, "x", connection=mine)
    stored.set()
    for _ in range(20):
        await asyncio.sleep(0)
    await mine.commit()

    assert 5 == await running
    assert {"charge": b'"charged x"', "other": b"5"} == await steps_of(app)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_blocking_connection_is_used_on_the_thread_of_a_def_handler(
    app: Dibs, job: CurrentJob, blocking: psycopg.Connection[Any], end: str
) -> None:
    def handler() -> None:
        def pay() -> int:
            return blocking.execute("INSERT INTO charges VALUES ('x')").rowcount

        assert 1 == job.step("charge", pay, connection=blocking)
        getattr(blocking, end)()
        assert 5 == job.step("ship", lambda: 5)

    await asyncio.to_thread(handler)

    assert (["charge", "ship"] if end == "commit" else ["ship"]) == sorted(await steps_of(app))


async def test_a_connection_of_sqlalchemy_works(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any], postgres_server: PostgresServer
) -> None:
    engine = create_async_engine(
        postgres_server.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
    )

    async def pay() -> None:
        await connection.execute(text("INSERT INTO charges VALUES ('x')"))

    async with engine.begin() as connection:
        await job.step("charge", pay, connection=connection)

    assert ["charge"] == list(await steps_of(app))
    await engine.dispose()


async def test_the_joined_step_of_a_lost_run_is_refused(
    app: Dibs, job: CurrentJob, mine: psycopg.AsyncConnection[Any]
) -> None:
    await app.queue("q").forget("a")

    with pytest.raises(LeaseLost, match="charge"):
        await job.step("charge", charge, mine, "x", connection=mine)


async def test_a_storage_without_transactions_refuses_before_the_function_is_called() -> None:
    calls: list[int] = []
    async with Dibs("memory:") as app:
        await app.queue("q").enqueue(1, id="a")
        job = await claim(app)
        with pytest.raises(Refused, match="use a Postgres storage") as caught:
            await job.step("charge", calls.append, 1, connection=object())

    assert ("connection", []) == (caught.value.field, calls)
