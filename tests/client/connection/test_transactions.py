"""`connection=` makes enqueue and settle part of the caller's transaction, tested on a Postgres server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from dibs import BatchRefused, Dibs, LeaseLost, Refused
from dibs.client.sync.app import BlockingDibs
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.client import handlers

_NUMBERS = count()


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """The URL of a new schema, which is empty."""
    return f"{postgres_server.url}?schema=transactions_{next(_NUMBERS)}"


@pytest.fixture
async def app(url: str) -> AsyncIterator[Dibs]:
    async with Dibs(url) as app:
        yield app


@pytest.fixture
def here(url: str) -> Iterator[BlockingDibs]:
    with Dibs(url).sync as app:
        yield app


@pytest.fixture
async def mine(postgres_server: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
        yield connection


@pytest.fixture
def blocking(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.url) as connection:
        yield connection


# -- enqueue -------------------------------------------------------------------------------------------


async def test_a_commit_makes_a_job_visible(app: Dibs, mine: psycopg.AsyncConnection[Any]) -> None:
    queue = app.queue("q")
    ticket = await queue.enqueue(1, id="a", connection=mine)

    assert "queued" == ticket.verdict
    assert None is await queue.get("a")
    await mine.commit()
    assert "waiting" == (await ticket.status()).state


async def test_a_rollback_undoes_every_enqueue(app: Dibs, mine: psycopg.AsyncConnection[Any]) -> None:
    task = app.task(handlers.thumbnail)
    await app.queue("q").enqueue(1, connection=mine)
    await app.queue("q").enqueue_many([1, 2], connection=mine)
    await task.options(connection=mine).enqueue("a.png")
    await task.enqueue_many([task.bind("b.png")], connection=mine)
    await mine.rollback()

    assert 0 == (await app.queue("q").counts()).waiting
    assert 0 == (await task.queue.counts()).waiting


async def test_a_task_and_many_of_it_are_committed_together(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    task = app.task(handlers.thumbnail)
    async with mine.transaction():
        ticket = await task.options(id="a", connection=mine).enqueue("a.png", width=5)
        tickets = await task.enqueue_many([task.bind("b.png"), task.bind("c.png")], connection=mine)

    assert ["queued"] * 3 == [one.verdict for one in (ticket, *tickets)]
    assert 3 == (await task.queue.counts()).waiting


async def test_an_enqueue_in_a_transaction_is_not_coalesced_with_others(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    queue = app.queue("q")
    # Creates the queue first: if the transaction created it, other enqueues would wait for its end.
    await queue.resume()
    await asyncio.gather(
        *(queue.enqueue(n, id=f"theirs-{n}") for n in range(20)), queue.enqueue(0, id="mine", connection=mine)
    )
    await mine.rollback()

    assert None is await queue.get("mine")
    assert 20 == (await queue.counts()).waiting


async def test_invalid_input_is_refused_before_the_transaction_begins(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    queue = app.queue("q")
    with pytest.raises(Refused, match="priority"):
        await queue.enqueue(1, priority=5000, connection=mine)
    with pytest.raises(BatchRefused):
        await queue.enqueue_many([queue.bind(1, priority=5000)], connection=mine)

    assert psycopg.pq.TransactionStatus.IDLE == mine.info.transaction_status


async def test_enqueue_in_a_failed_transaction_raises(app: Dibs, mine: psycopg.AsyncConnection[Any]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await mine.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="current transaction is aborted"):
        await app.queue("q").enqueue(1, connection=mine)


# -- settle --------------------------------------------------------------------------------------------


async def test_a_completion_is_committed_with_its_follow_up(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    queue, after = app.queue("q"), app.queue("after")
    ticket = await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        async for claim in claims:
            await claim.complete("done", then=[after.bind(2, id="b")], connection=mine)

    assert "active" == (await ticket.status()).state
    await mine.commit()
    assert "done" == await ticket.result()
    assert 1 == (await after.counts()).waiting


async def test_after_a_rollback_a_claim_may_be_settled_again(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    queue = app.queue("q")
    ticket = await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        claim = await anext(claims)
        await claim.complete("never", connection=mine)
        await mine.rollback()
        await claim.complete("done", connection=mine)
        await mine.commit()
        with pytest.raises(LeaseLost):
            await claim.fail("too late", connection=mine)

    assert "done" == await ticket.result()


async def test_leaving_the_receiver_releases_the_rest_despite_an_open_transaction(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    """The receiver does not drop a claim that waits for a commit: the drop would wait for this commit."""
    queue = app.queue("q")
    await queue.enqueue_many([queue.bind(n, id=str(n)) for n in range(3)])
    async with asyncio.timeout(20), queue.receive(max_jobs=3, wait=0) as claims:
        first = await anext(claims)
        await first.fail("no", connection=mine)

    counts = await queue.counts()
    assert (2, 1) == (counts.waiting, counts.active)
    await mine.commit()
    assert 0 == (await queue.counts()).active


async def test_a_claim_whose_completion_was_rolled_back_returns_to_the_queue(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    queue = app.queue("q")
    await queue.enqueue(1, id="a")
    async with asyncio.timeout(20), queue.receive(lease=0.3) as claims:
        claim = await anext(claims)
        await claim.complete(connection=mine)
        await mine.rollback()
        again = await anext(claims)
        await again.complete()

    assert ("a", 1) == (again.id, again.stalls)


# -- without async -------------------------------------------------------------------------------------


def test_blocking_code_enqueues_and_settles_on_its_own_thread(
    here: BlockingDibs, blocking: psycopg.Connection[Any]
) -> None:
    queue = here.queue("q")
    queue.enqueue(1, id="a", connection=blocking)
    blocking.rollback()
    assert 0 == queue.counts().waiting

    ticket = queue.enqueue(1, id="a", connection=blocking)
    queue.enqueue_many([2, 3], connection=blocking)
    blocking.commit()
    assert 3 == queue.counts().waiting

    with queue.receive(max_jobs=1, wait=0) as claims:
        next(claims).complete("done", connection=blocking)
    blocking.commit()
    assert "done" == ticket.result()


async def test_a_handler_s_thread_uses_its_own_connection(
    app: Dibs, blocking: psycopg.Connection[Any]
) -> None:
    task = app.task(handlers.thumbnail)
    await asyncio.to_thread(task.sync.options(id="a", connection=blocking).enqueue, "a.png")

    assert 0 == (await task.queue.counts()).waiting
    blocking.commit()
    assert 1 == (await task.queue.counts()).waiting


def test_an_error_on_the_callers_thread_is_raised_there(
    here: BlockingDibs, blocking: psycopg.Connection[Any]
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        blocking.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="current transaction is aborted"):
        here.queue("q").enqueue(1, connection=blocking)


@pytest.mark.parametrize("cursors", [psycopg.ClientCursor, psycopg.RawCursor])
def test_a_connection_may_have_another_cursor_class(
    postgres_server: PostgresServer, here: BlockingDibs, cursors: Any
) -> None:
    """Django's connections use cursors that bind parameters on the client side."""
    with psycopg.connect(postgres_server.url, cursor_factory=cursors, row_factory=dict_row) as connection:
        ticket = here.queue("q").enqueue(1, id="a", connection=connection)
        connection.commit()
        with here.queue("q").receive(max_jobs=1, wait=0) as claims:
            next(claims).complete("done", connection=connection)
        connection.commit()

    assert "done" == ticket.result()


# -- SQLAlchemy ----------------------------------------------------------------------------------------


def alchemy(server: PostgresServer) -> str:
    return server.url.replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.parametrize("begun", [True, False])
async def test_an_async_connection_of_sqlalchemy(
    app: Dibs, postgres_server: PostgresServer, *, begun: bool
) -> None:
    """The commit of the connection includes the enqueue, also if the enqueue is its first statement."""
    queue = app.queue("q")
    engine = create_async_engine(alchemy(postgres_server), poolclass=NullPool)
    async with engine.connect() as connection:
        if begun:
            await connection.begin()
        await queue.enqueue(1, connection=connection)
        await connection.rollback()
        await queue.enqueue(1, id="a", connection=connection)
        assert None is await queue.get("a")
        await connection.commit()

    assert 1 == (await queue.counts()).waiting


@pytest.mark.parametrize("begun", [True, False])
def test_a_connection_of_sqlalchemy(
    here: BlockingDibs, postgres_server: PostgresServer, *, begun: bool
) -> None:
    queue = here.queue("q")
    engine = create_engine(alchemy(postgres_server), poolclass=NullPool)
    with engine.connect() as connection:
        if begun:
            connection.begin()
        queue.enqueue(1, connection=connection)
        connection.rollback()
        queue.enqueue(1, id="a", connection=connection)
        assert None is queue.get("a")
        connection.commit()

    assert 1 == queue.counts().waiting


# -- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["memory", "file", "redis"])
async def test_a_storage_without_the_capability_refuses_a_connection(
    scheme: str, request: pytest.FixtureRequest
) -> None:
    if scheme == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        url = f"{server.url}?prefix=transactions"
    else:
        url = "memory:" if scheme == "memory" else f"file:{request.getfixturevalue('tmp_path')}"
    async with Dibs(url) as app:
        queue = app.queue("q")
        with pytest.raises(Refused, match="capability `transactions`") as refused:
            await queue.enqueue(1, connection=object())
        with pytest.raises(Refused, match="capability `transactions`"):
            await queue.enqueue_many([1], connection=object())

        assert "connection" == refused.value.field
        assert 0 == (await queue.counts()).waiting


async def test_a_connection_of_the_wrong_kind_is_refused(
    app: Dibs, here: BlockingDibs, mine: psycopg.AsyncConnection[Any], blocking: psycopg.Connection[Any]
) -> None:
    with pytest.raises(Refused, match="it must be a connection of psycopg 3"):
        await app.queue("q").enqueue(1, connection=object())
    with pytest.raises(Refused, match="would block the event loop"):
        await app.queue("q").enqueue(1, connection=blocking)
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(Refused, match="would block the event loop"):
        await app.queue("q").enqueue(1, connection=connection)
    # Since Python 3.13 a connection of sqlite3 that is not closed warns when it is collected.
    engine.dispose()
    with pytest.raises(Refused, match="belongs to an event loop"):
        await asyncio.to_thread(here.queue("q").enqueue, 1, connection=mine)


async def test_enqueue_and_wait_and_bind_refuse_a_connection(
    app: Dibs, mine: psycopg.AsyncConnection[Any]
) -> None:
    task = app.task(handlers.thumbnail)
    in_transaction = task.options(connection=mine)
    with pytest.raises(Refused, match="enqueue_and_wait cannot use connection"):
        await in_transaction.enqueue_and_wait("a.png")
    with pytest.raises(BatchRefused) as refused:
        await task.enqueue_many([in_transaction.bind("a.png")])
    (error,) = refused.value.exceptions

    assert "pass the connection to enqueue_many" in str(error)
