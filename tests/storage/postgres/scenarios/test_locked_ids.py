"""Calls for an id that an open transaction locks wait alone, and end at their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dibs import Dibs, Queue, StorageBusy
from dibs.storage.postgres import PostgresStorage
from dibs_conformance.servers import PostgresServer


@pytest.fixture
async def app(storage: PostgresStorage, postgres_server: PostgresServer, schema: str) -> AsyncIterator[Dibs]:
    async with Dibs(f"{postgres_server.url}?schema={schema}", call_timeout=20) as app:
        yield app


@pytest.fixture
async def hasty(
    storage: PostgresStorage, postgres_server: PostgresServer, schema: str
) -> AsyncIterator[Queue]:
    """The queue of another app, whose calls end after three seconds.

    A tenth of them is left for the answer that a statement met a lock. With 0.5 s, a busy machine took longer
    for the answer, so the call raised OutcomeUnknown, as it should.
    """
    async with Dibs(f"{postgres_server.url}?schema={schema}", call_timeout=3) as app:
        yield app.queue("q")


async def payloads(queue: Queue) -> dict[str, Any]:
    return {status.id: status.data async for status in queue.list("waiting")}


async def test_calls_for_other_ids_go_on(queue: Queue, connect: Callable[[], Any]) -> None:
    """In an earlier version, a call that waited for a lock delayed all calls of its process to the queue."""
    connection = await connect()
    async with connection.transaction():
        await queue.enqueue("in the transaction", id="x", connection=connection)
        waiting = asyncio.create_task(queue.enqueue("outside", id="x"))
        others = [queue.enqueue(number, id=f"y{number}") for number in range(50)]
        async with asyncio.timeout(10):
            await asyncio.gather(*others)
            await queue.enqueue("later", id="z")
        assert not waiting.done()
    await waiting

    assert {"x": "outside", "z": "later"} | {f"y{n}": n for n in range(50)} == await payloads(queue)


async def test_one_batch_is_divided_until_its_locked_id_waits_alone(
    queue: Queue, connect: Callable[[], Any]
) -> None:
    connection = await connect()
    async with connection.transaction():
        await queue.enqueue(0, id="x500", connection=connection)
        calls = [asyncio.create_task(queue.enqueue(number, id=f"x{number}")) for number in range(1000)]
        locked = calls.pop(500)
        async with asyncio.timeout(15):
            await asyncio.gather(*calls)
        assert not locked.done()
    await locked

    assert {f"x{number}": number for number in range(1000)} == await payloads(queue)


async def test_calls_for_a_locked_id_keep_their_order(queue: Queue, connect: Callable[[], Any]) -> None:
    connection = await connect()
    async with connection.transaction():
        await queue.enqueue("first", id="x", connection=connection)
        calls = [asyncio.create_task(queue.enqueue(number, id="x")) for number in range(5)]
        await queue.enqueue("other", id="y")
        calls += [asyncio.create_task(queue.enqueue(number, id="x")) for number in range(5, 10)]
        await asyncio.sleep(0)
    tickets = await asyncio.gather(*calls)

    assert {"x": 9, "y": "other"} == await payloads(queue)
    assert sorted(t.revision for t in tickets) == [t.revision for t in tickets]


async def test_an_enqueue_beside_its_own_transaction_ends_and_names_the_session(
    hasty: Queue, connect: Callable[[], Any]
) -> None:
    """In an earlier version, the enqueue waited for ever for a transaction of its own task."""
    connection = await connect()
    pid = connection.info.backend_pid
    async with connection.transaction():
        await hasty.enqueue("inside", id="x", connection=connection)
        with pytest.raises(StorageBusy, match=rf"session {pid} \(.*idle in transaction for \d+ s\)") as busy:
            await hasty.enqueue("outside", id="x")
        with pytest.raises(StorageBusy, match="nothing was written"):
            await hasty.enqueue_many([hasty.bind("outside", id="x"), hasty.bind("outside", id="y")])
    assert "lock" in busy.value.waits_for
    assert {"x": "inside"} == await payloads(hasty)

    await hasty.enqueue("after", id="x")
    assert {"x": "after"} == await payloads(hasty)


async def test_each_verb_by_id_ends_at_its_deadline(hasty: Queue, connect: Callable[[], Any]) -> None:
    await hasty.enqueue("before", id="x")
    connection = await connect()
    async with connection.transaction():
        await hasty.enqueue("inside", id="x", connection=connection)
        calls = hasty.cancel("x"), hasty.amend("x", priority=1), hasty.forget("x")
        errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [StorageBusy] * 3 == [type(error) for error in errors]
    assert all("another transaction holds" in str(error) for error in errors)
    assert {"x": "inside"} == await payloads(hasty)


async def test_a_settlement_waits_alone(queue: Queue, connect: Callable[[], Any]) -> None:
    connection = await connect()
    await queue.enqueue_many(range(3))
    async with queue.receive(max_jobs=3) as claims:
        first, second, third = [await anext(claims) for _ in range(3)]
        async with connection.transaction():
            # The update of a running job locks its row.
            await queue.enqueue("next", id=first.id, connection=connection)
            waiting = asyncio.create_task(first.complete())
            async with asyncio.timeout(10):
                await asyncio.gather(second.complete(), third.complete())
            assert not waiting.done()
        await waiting

    assert {first.id: "next"} == await payloads(queue)


async def test_a_cancelled_call_for_a_locked_id_is_not_sent(queue: Queue, connect: Callable[[], Any]) -> None:
    connection = await connect()
    async with connection.transaction():
        await queue.enqueue("inside", id="x", connection=connection)
        call = asyncio.create_task(queue.enqueue("outside", id="x"))
        await queue.enqueue("other", id="y")
        waiting = asyncio.create_task(queue.enqueue("second", id="x"))
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await call

    assert {"x": "outside", "y": "other"} == await payloads(queue)


async def test_many_calls_for_a_locked_id_leave_connections_for_others(
    queue: Queue, connect: Callable[[], Any]
) -> None:
    connection = await connect()
    await queue.enqueue("before", id="x")
    async with connection.transaction():
        await queue.enqueue("inside", id="x", connection=connection)
        waiting = [asyncio.create_task(queue.cancel("x")) for _ in range(30)]
        async with asyncio.timeout(15):
            assert await queue.cancel("y") == "not_found"
            await queue.enqueue("other", id="y")
        assert not [call for call in waiting if call.done()]
    answers = await asyncio.gather(*waiting)

    assert set(answers) == {"cancelled"}


async def test_the_limit_of_a_lock_wait_ends_with_its_statement(
    opening: Callable[..., PostgresStorage],
) -> None:
    """Behind a pooler, another client gets the session next, and must not inherit the limit."""
    async with opening(max_connections=1) as storage:
        limited = storage.limit_lock_waits(0.1)
        for _ in range(5):  # the driver prepares a statement that is repeated
            await limited.counts(["q"])
            assert await limited.cancel("q", ["x"]) == ["not_found"]
            found = await storage._server.fetch(b"SHOW lock_timeout", {}, writes=False)
            assert found == [("0",)]
