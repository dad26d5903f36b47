"""Single enqueues on Postgres that are awaited, and sent without a task."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from dibs import Dibs, OutcomeUnknown, Queue, StorageReadOnly
from dibs.model.check_jobs import CheckedBatch
from dibs.model.job import OutcomeRetention
from dibs.model.requests import SettingsPatch
from dibs.model.results import EnqueueResult
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.network import connections
from dibs.storage.postgres.network.connections import PooledConnection
from dibs.storage.postgres.network.prepared_enqueue import PREPARE_AFTER
from dibs.storage.postgres.network.server import PostgresDatabase
from dibs.storage.registry import with_option
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.pooler import pooled

LOCK_ALL = "LOCK TABLE live IN ACCESS EXCLUSIVE MODE"
END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND wait_event_type = 'Lock'"
)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each direct enqueue whether it was sent."""
    sent: list[bool] = []
    start = PostgresDatabase.start_enqueue

    def noted(server: PostgresDatabase, values: Sequence[bytes | None], on_answer: Any) -> bool:
        sent.append(start(server, values, on_answer))
        return sent[-1]

    monkeypatch.setattr(PostgresDatabase, "start_enqueue", noted)
    return sent


async def warm(queue: Queue) -> None:
    """Enqueue until the connection has the prepared statement."""
    for _ in range(PREPARE_AFTER + 1):
        await queue.enqueue("warm")
    assert await queue.clear() > 0


async def test_enqueues_one_after_the_other_are_sent_without_a_task(queue: Queue, direct: list[bool]) -> None:
    await warm(queue)
    direct.clear()
    tickets = [await queue.enqueue(n, id=f"{n}") for n in range(5)]

    assert [True] * 5 == direct
    assert ["queued"] * 5 == [ticket.verdict for ticket in tickets]
    revisions = [ticket.revision for ticket in tickets]
    assert sorted(set(revisions)) == revisions
    assert [f"{n}" for n in range(5)] == [status.id async for status in queue.list("waiting")]


async def stored(storage: PostgresStorage, id: str) -> tuple[int, bytes]:
    """Return the revision and the payload of a waiting job."""
    job = (await storage.get("q", [id]))[0].current
    assert job is not None
    return job.revision, job.data.payload


async def test_the_answer_about_a_known_id_is_that_of_the_general_path(
    queue: Queue, storage: PostgresStorage, direct: list[bool]
) -> None:
    await warm(queue)
    first = await queue.enqueue(1, id="x")
    direct.clear()
    second = await queue.enqueue(2, id="x")

    assert [True] == direct
    assert "updated" == second.verdict
    assert second.revision > first.revision
    assert (second.revision, b"2") == await stored(storage, "x")


async def test_a_locked_id_does_not_stop_other_ids(
    queue: Queue, storage: PostgresStorage, connect: Callable[[], Any], direct: list[bool]
) -> None:
    await warm(queue)
    await queue.enqueue(1, id="locked")
    other = await connect()
    await other.execute("SELECT * FROM live WHERE id = 'locked' FOR UPDATE")
    direct.clear()
    waiting = [asyncio.create_task(queue.enqueue(n, id="locked")) for n in (2, 3)]
    await asyncio.sleep(0)
    free = await queue.enqueue(4, id="free")

    assert "queued" == free.verdict
    assert not any(call.done() for call in waiting)
    await other.rollback()
    tickets = await asyncio.gather(*waiting)
    assert tickets[0].revision < tickets[1].revision
    assert (tickets[1].revision, b"3") == await stored(storage, "locked")


async def test_a_call_behind_a_lane_is_not_sent_directly(
    queue: Queue, connect: Callable[[], Any], direct: list[bool]
) -> None:
    await warm(queue)
    await queue.enqueue(1, id="locked")
    other = await connect()
    await other.execute("SELECT * FROM live WHERE id = 'locked' FOR UPDATE")
    first = asyncio.create_task(queue.enqueue(2, id="locked"))
    await queue.enqueue(0, id="free")
    await asyncio.sleep(0.3)
    direct.clear()
    second = asyncio.create_task(queue.enqueue(3, id="locked"))
    await asyncio.sleep(0)

    assert [] == direct
    await other.rollback()
    assert (await first).revision < (await second).revision


async def test_a_session_that_lost_the_statement_gets_it_again(
    queue: Queue, app: Dibs, direct: list[bool]
) -> None:
    await warm(queue)
    opened: Any = app.storage
    (connection,) = opened._server.check_open()._idle
    await connection.execute("DEALLOCATE ALL")
    # psycopg has statements of its own, which it would miss as well.
    connection.prepare_threshold = None
    direct.clear()
    tickets = [await queue.enqueue(n) for n in range(3)]

    assert ["queued"] * 3 == [ticket.verdict for ticket in tickets]
    assert 3 == (await queue.counts()).waiting
    assert [True, False] == direct[:2]
    for n in range(PREPARE_AFTER):
        await queue.enqueue(n)
    assert direct[-1]


async def test_a_connection_that_is_lost_during_a_call_is_an_unknown_outcome(
    queue: Queue, connect: Callable[[], Any], direct: list[bool]
) -> None:
    await warm(queue)
    other = await connect()
    await other.execute(LOCK_ALL)
    direct.clear()
    call = asyncio.create_task(queue.enqueue(1, id="x"))
    while not await ended_sessions(other):  # noqa: ASYNC110 - the server tells nobody that a call waits
        await asyncio.sleep(0)
    with pytest.raises(OutcomeUnknown):
        await call
    assert [True] == direct
    await other.rollback()

    assert "queued" == (await queue.enqueue(2, id="x")).verdict


async def test_a_connection_that_is_lost_before_the_send_ends_its_call_later(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch, direct: list[bool]
) -> None:
    await warm(queue)
    opened: Any = app.storage
    (connection,) = opened._server.check_open()._idle
    # The server closes the connection between the check of an idle connection and the send.
    monkeypatch.setattr(connections, "has_unread_data", lambda _: False)
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
    direct.clear()
    with pytest.raises(OutcomeUnknown, match="connection was lost"):
        await queue.enqueue(1)
    assert [True] == direct

    assert connection.closed
    assert "queued" == (await queue.enqueue(2)).verdict


async def ended_sessions(connection: psycopg.AsyncConnection[Any]) -> int:
    return len(await (await connection.execute(END_OTHERS)).fetchall())


async def test_a_connection_that_the_server_has_closed_is_replaced(
    queue: Queue, connect: Callable[[], Any]
) -> None:
    await warm(queue)
    other = await connect()
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    await asyncio.sleep(0.1)

    assert ["queued"] * 3 == [(await queue.enqueue(n)).verdict for n in range(3)]


async def test_the_close_of_the_storage_ends_a_call_in_flight(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    ends: list[Any] = []
    server = storage._server
    await with_statement(storage)
    other = await connect()
    await other.execute(LOCK_ALL)
    assert server.start_enqueue((b"q", b"5000", b"x", b"1"), ends.append)
    await server.close()

    (error,) = ends
    assert isinstance(server.to_write_error(error), OutcomeUnknown)


async def test_behind_a_pooler_no_statement_is_prepared(
    postgres_server: PostgresServer, schema: str, direct: list[bool]
) -> None:
    async with Dibs(f"{postgres_server.url}?schema={schema}"):
        pass
    async with pooled(postgres_server) as (url, _), Dibs(with_option(url, "schema", schema)) as app:
        for n in range(PREPARE_AFTER + 3):
            await app.queue("q").enqueue(n)
        assert not any(direct)
        opened: Any = app.storage
        assert opened._server.for_threads is None


async def test_a_cancelled_call_takes_effect_before_the_next_one(
    queue: Queue, app: Dibs, direct: list[bool]
) -> None:
    await warm(queue)
    direct.clear()
    call = asyncio.create_task(queue.enqueue(1, id="x"))
    await asyncio.sleep(0)
    assert [True] == direct
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "updated" == (await queue.enqueue(2, id="x")).verdict

    opened: Any = app.storage
    server: PostgresDatabase = opened._server
    assert (set(), 1) == (server._in_flight, len(server.check_open()._idle))


async def test_a_session_that_has_become_read_only_is_closed(
    queue: Queue, app: Dibs, direct: list[bool]
) -> None:
    await warm(queue)
    opened: Any = app.storage
    (connection,) = opened._server.check_open()._idle
    await connection.execute("SET default_transaction_read_only = on")
    direct.clear()
    with pytest.raises(StorageReadOnly):
        await queue.enqueue(1)

    assert [True] == direct
    assert connection.closed
    assert "queued" == (await queue.enqueue(2)).verdict


async def with_statement(storage: PostgresStorage) -> PooledConnection:
    """Add a connection with the prepared statement to the pool."""
    connection = await storage._server._connect_prepared()
    connection.has_enqueue = True
    storage._server.check_open()._idle.append(connection)
    return connection


async def test_each_way_gives_the_same_answer_for_each_state_of_an_id(storage: PostgresStorage) -> None:
    batch = CheckedBatch.of([asked("x", b"\x00\xff")], storage.limits, plain=True)
    loop = asyncio.get_running_loop()
    await with_statement(storage)
    threads = storage._server.for_threads
    assert threads is not None
    await threads._open_one()

    async def direct(queue: str) -> Any:
        end: asyncio.Future[Any] = loop.create_future()
        assert storage.start_enqueue(queue, batch, end.set_result)
        return await end

    async def general(queue: str) -> Sequence[EnqueueResult]:
        return await storage.enqueue(queue, batch)

    async def blocking(queue: str) -> Sequence[EnqueueResult] | None:
        return storage.enqueue_blocking(queue, batch)

    found = []
    for queue, enqueue in (("general", general), ("direct", direct), ("blocking", blocking)):
        patch = SettingsPatch(retention=OutcomeRetention(completed=3_600_000))
        await storage.configure(queue, patch)
        base = (await storage.enqueue(queue, [asked("first")]))[0].revision
        results = [await enqueue(queue), await enqueue(queue)]
        (_, job) = await claimed(storage, queue)
        results += [await enqueue(queue), await enqueue(queue)]
        await storage.settle(queue, [done(job)])
        results += [await enqueue(queue)]
        (successor,) = await claimed(storage, queue)
        await storage.settle(queue, [done(successor)])
        results += [await enqueue(queue)]
        found.append([(r[0].status, r[0].found, r[0].first - base) for r in results if r])
        assert (successor.data.payload, 6) == (b"\x00\xff", len(found[-1]))

    assert found[0] == found[1] == found[2]
    assert len({each[:2] for each in found[0]}) > 3


async def test_a_call_that_cannot_be_sent_ends_later(storage: PostgresStorage) -> None:
    server, connection = storage._server, await with_statement(storage)
    connection.pgconn.send_query(b"SELECT pg_sleep(60)")  # libpq sends no second statement during it
    ends: list[Any] = []

    assert server.start_enqueue((b"q", b"100", b"x", b"1"), ends.append)
    assert [] == ends
    while not ends:  # noqa: ASYNC110 - the end is a callback
        await asyncio.sleep(0)
    assert isinstance(server.to_write_error(ends[0]), OutcomeUnknown)
    assert connection.closed
