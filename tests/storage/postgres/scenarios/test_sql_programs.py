"""Workers in Python and programs that use SQL alone share queues, and run jobs of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dibs import Dibs, Failure, JobFailed, current_job
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.sql_programs import SqlProgram


async def ship(order: str, parts: int) -> dict[str, Any]:
    return {order: parts}


async def echo(data: Any) -> Any:
    return data


async def wait_for_approval() -> list[Any]:
    return [await current_job().wait_for("approved")]


async def read_two() -> list[int | None]:
    return [await current_job().wait_for("number", int | None) for _ in range(2)]


async def describe_failure(failure: Failure) -> list[str]:
    return [failure.id, failure.error.message]


@pytest.fixture
async def start_program(postgres_server: PostgresServer, schema: str) -> AsyncIterator[Callable[[], Any]]:
    """Return a function that opens a connection for another program."""
    async with AsyncExitStack() as stack:

        async def connect() -> SqlProgram:
            opened = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
            return SqlProgram(await stack.enter_async_context(opened), schema)

        yield connect


@asynccontextmanager
async def worker_of(app: Dibs) -> AsyncIterator[None]:
    working = asyncio.create_task(app.work())
    try:
        yield
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


@pytest.mark.parametrize(
    "payload",
    [{"args": ["a", 2]}, {"kwargs": {"order": "a", "parts": 2}}, {"args": ["a"], "kwargs": {"parts": 2}}],
)
async def test_a_worker_runs_a_task_that_sql_enqueued(app: Dibs, sql: SqlProgram, payload: Any) -> None:
    app.task(queue="ship")(ship)
    await sql.call("enqueue_job", queue="ship", id="a", payload=Jsonb(payload))
    await app.work(until="empty")

    shown = await sql.row("SELECT state, result FROM {s}.outcomes WHERE queue = 'ship'")
    assert {"state": "completed", "result": {"a": 2}} == shown


async def test_a_parked_handler_gets_a_signal_from_sql(app: Dibs, sql: SqlProgram) -> None:
    task = app.task(queue="q")(wait_for_approval)
    async with worker_of(app):
        ticket = await task.options(id="a").enqueue()
        while (await ticket.status()).state != "parked":  # noqa: ASYNC110 - no event tells of a parked job
            await asyncio.sleep(0.01)
        arguments = {"queue": "q", "id": "a", "name": "approved", "value": Jsonb({"by": "é"})}
        answers = [await sql.value("signal_job", **arguments, request_key="k") for _ in range(2)]

        assert [{"by": "é"}] == await ticket.result(wait=20)
    assert ["delivered"] * 2 == answers
    assert "absent" == await sql.value("signal_job", queue="q", id="a", name="approved")


async def test_signals_from_sql_come_in_their_order_and_have_a_limit(app: Dibs, sql: SqlProgram) -> None:
    ticket = await app.task(queue="q")(read_two).options(id="a").enqueue()
    for value in (None, 2):
        await sql.value("signal_job", queue="q", id="a", name="number", value=Jsonb(value))
    big = Jsonb("x" * 60_000)
    answers = [await sql.value("signal_job", queue="q", id="a", name="other", value=big) for _ in range(2)]
    await app.work(until="empty")

    assert ["delivered", "full"] == answers
    assert [None, 2] == await ticket.result()


async def test_an_idle_worker_runs_a_job_after_the_commit(app: Dibs, sql: SqlProgram) -> None:
    queue = app.queue("q")
    queue.handler(echo)
    async with worker_of(app):
        await sql.rows("BEGIN")
        enqueued = await sql.call("enqueue_job", queue="q", payload=Jsonb({"n": 1}))
        assert await queue.get(enqueued["id"]) is None
        await sql.rows("COMMIT")

        assert {"n": 1} == await queue.ticket(enqueued["id"], enqueued["revision"]).result(wait=60)


async def test_a_program_runs_jobs_that_python_waits_for(app: Dibs, sql: SqlProgram) -> None:
    queue = app.queue("q")
    completed, failed = await queue.enqueue({"n": 1}), await queue.enqueue({"n": 2})
    first, second = await sql.calls("claim_jobs", queue="q", max_jobs=10)
    await sql.value(
        "complete_job", queue="q", id=first["id"], fence=first["fence"], result=Jsonb([first["payload"]])
    )
    await sql.value("fail_job", queue="q", id=second["id"], fence=second["fence"], error="no such address")

    assert [{"n": 1}] == await completed.result(wait=60)
    with pytest.raises(JobFailed, match="no such address"):
        await failed.result(wait=60)


async def test_the_failure_handler_gets_a_failure_of_a_program(app: Dibs, sql: SqlProgram) -> None:
    queue = app.queue("q")
    queue.handler(echo)
    queue.on_failure(describe_failure)
    await queue.enqueue({"n": 1}, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    await sql.rows("SELECT {s}.configure('q', '{\"fail_handler\": true}', NULL)")
    await sql.value("fail_job", queue="q", id="a", fence=job["fence"], error="no")
    await app.work(until="empty")

    shown = await sql.row("SELECT result FROM {s}.outcomes WHERE queue = 'q!fail'")
    assert ["a", "no"] == shown["result"]


async def test_a_rollback_of_a_claim_and_its_end_returns_both(app: Dibs, sql: SqlProgram) -> None:
    await app.queue("q").enqueue(1, id="a")
    await sql.rows("BEGIN")
    (job,) = await sql.calls("claim_jobs", queue="q")
    await sql.value("complete_job", queue="q", id="a", fence=job["fence"])
    await sql.rows("ROLLBACK")

    (again,) = await sql.calls("claim_jobs", queue="q")
    assert 1 == again["attempts"]
    assert again["fence"] > job["fence"]


async def test_claims_of_programs_and_of_python_never_overlap(
    app: Dibs, start_program: Callable[[], Any]
) -> None:
    queue = app.queue("q")
    await queue.enqueue_many(range(60))
    programs = [await start_program() for _ in range(4)]

    async def claim_in_python() -> list[int]:
        async with queue.receive(max_jobs=20, wait=0) as claims:
            taken = [claim async for claim in _some(claims, 20)]
            for claim in taken:
                await claim.complete()
            return [claim.data for claim in taken]

    async def claim_in_sql(program: SqlProgram) -> list[int]:
        jobs = await program.calls("claim_jobs", queue="q", max_jobs=20)
        return [job["payload"] for job in jobs]

    taken = await asyncio.gather(claim_in_python(), *(claim_in_sql(program) for program in programs))
    numbers = [number for part in taken for number in part]
    assert [*range(60)] == sorted(numbers)


async def _some(claims: Any, most: int) -> AsyncIterator[Any]:
    """Yield claims until the queue is empty, at most `most`."""
    for _ in range(most):
        try:
            yield await anext(claims)
        except StopAsyncIteration:
            return
