"""Enqueue and settle inside the caller's own transaction: a commit makes both visible, a rollback neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import Rollback

from dibs.errors import BatchRefused
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import EnqueueRequest, Fail, FollowUp, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked, claimed, done

Connect = Callable[[], Any]


async def test_a_commit_makes_both_visible(storage: PostgresStorage, connect: Connect) -> None:
    mine = await connect()
    await mine.execute("CREATE TABLE orders (id text)")
    await mine.execute("INSERT INTO orders VALUES ('a')")
    answers = await storage.in_transaction(mine).enqueue("q", [asked("a")])

    assert "queued" == answers[0].status
    assert None is (await storage.get("q", ["a"]))[0].current
    await mine.commit()
    assert ["a"] == [job.id for job in await claimed(storage)]


async def test_a_rollback_makes_neither(storage: PostgresStorage, connect: Connect) -> None:
    mine = await connect()
    await storage.in_transaction(mine).enqueue("q", [asked("a")])
    await mine.rollback()

    assert None is (await storage.get("q", ["a"]))[0].current


async def test_settle_joins_too(storage: PostgresStorage, connect: Connect) -> None:
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    mine = await connect()
    assert "done" == (await storage.in_transaction(mine).settle("q", [done(job, b"r")]))[0].status
    await mine.rollback()
    assert "done" == (await storage.in_transaction(mine).settle("q", [done(job, b"r")]))[0].status
    await mine.commit()

    outcome = (await storage.get("q", ["a"]))[0].outcome
    assert outcome is not None
    assert b"r" == outcome.result


async def test_a_connection_without_asyncio_joins_on_the_caller_s_thread(
    storage: PostgresStorage, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(postgres_server.url, row_factory=psycopg.rows.dict_row) as mine:
        storage.in_transaction(mine).enqueue("q", [asked("a"), asked("b")])
    (a, b) = await claimed(storage)
    with psycopg.connect(postgres_server.url) as mine:
        assert ["done", "done"] == [
            one.status for one in storage.in_transaction(mine).settle("q", [done(a), done(b)])
        ]


async def test_after_a_savepoint_was_rolled_back_the_log_is_whole(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.configure("q", SettingsPatch(fail_handler=True))
    await storage.enqueue("q", [asked("a"), asked("b")])
    a, b = await claimed(storage)
    mine = await connect()
    async with mine.transaction():
        with suppress(Rollback):
            async with mine.transaction():
                await storage.in_transaction(mine).settle("q", [done(a)])
                raise Rollback
        await storage.in_transaction(mine).settle("q", [done(b)])
        assert () == (await storage.events("q")).events

    assert ["b"] == [event.id for _, event in (await storage.events("q")).events]


async def test_bad_input_is_refused_before_it_reaches_the_transaction(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    with pytest.raises(BatchRefused):
        await storage.in_transaction(mine).enqueue("q", [EnqueueRequest(job=NewJob(id="", data=JobData()))])

    assert psycopg.pq.TransactionStatus.IDLE == mine.info.transaction_status


async def test_a_transaction_that_failed_already_raises_the_driver_s_error(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    with pytest.raises(psycopg.errors.DivisionByZero):
        await mine.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await storage.in_transaction(mine).enqueue("q", [asked("a")])


async def test_the_first_enqueue_to_a_queue_in_an_open_transaction_holds_up_nobody(
    storage: PostgresStorage, opening: Callable[..., PostgresStorage], connect: Connect
) -> None:
    mine = await connect()
    await storage.in_transaction(mine).enqueue("new", [asked("a")])
    async with opening() as other, asyncio.timeout(30):
        assert "queued" == (await other.enqueue("new", [asked("b")]))[0].status
    await mine.rollback()

    assert ["b"] == [job.id for job in await claimed(storage, "new")]


async def test_neither_does_a_blocking_connection(
    storage: PostgresStorage, postgres_server: PostgresServer
) -> None:
    with psycopg.connect(postgres_server.url) as mine:
        storage.in_transaction(mine).enqueue("new", [asked("a")])
        async with asyncio.timeout(30):
            await storage.enqueue("new", [asked("b")])
        mine.rollback()

    assert ["b"] == [job.id for job in await claimed(storage, "new")]


async def test_nor_the_first_failure_in_one(
    storage: PostgresStorage, opening: Callable[..., PostgresStorage], connect: Connect
) -> None:
    """The first failure creates the fail queue and the queue of the follow-up, in an open transaction."""
    await storage.configure("q", SettingsPatch(fail_handler=True))
    await storage.enqueue("q", [asked("a"), asked("b")])
    a, b = await claimed(storage)
    ends = [
        Settlement(
            id=job.id,
            fence=job.run.fence,
            action=Fail(error=Error(type="E"), then=(FollowUp(queue="next", job=NewJob(id=job.id)),)),
        )
        for job in (a, b)
        if job.run
    ]
    mine = await connect()
    await storage.in_transaction(mine).settle("q", ends[:1])
    async with opening() as other, asyncio.timeout(30):
        assert "done" == (await other.settle("q", ends[1:]))[0].status
    await mine.commit()

    assert 2 == (await storage.counts(["q!fail"]))["q!fail"].waiting
    assert 2 == (await storage.counts(["next"]))["next"].waiting
