"""Single enqueues on Postgres: awaited ones without a task, and those of threads without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dibs import Dibs, DibsError, NotRunning, OutcomeUnknown, Queue, Refused
from dibs.client.sync.loop_call import LoopCall
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.network import connections
from dibs.storage.postgres.network.connections import PooledConnection
from dibs.storage.postgres.network.prepared_enqueue import PREPARE_AFTER
from dibs.storage.postgres.network.server import PostgresDatabase
from dibs.storage.postgres.network.thread_connections import MAX_FOR_THREADS, ThreadConnections
from dibs.storage.registry import with_option
from dibs_conformance.servers import PostgresServer
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
    connection = await server._connect_prepared()
    connection.has_enqueue = True
    server.check_open()._idle.append(connection)
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


async def test_a_call_that_cannot_be_sent_ends_later(storage: PostgresStorage) -> None:
    server = storage._server
    connection = await server._connect_prepared()
    connection.has_enqueue = True
    server.check_open()._idle.append(connection)
    connection.pgconn.send_query(b"SELECT pg_sleep(60)")  # libpq sends no second statement during it
    ends: list[Any] = []

    assert server.start_enqueue((b"q", b"100", b"x", b"1"), ends.append)
    assert [] == ends
    while not ends:  # noqa: ASYNC110 - the end is a callback
        await asyncio.sleep(0)
    assert isinstance(server.to_write_error(ends[0]), OutcomeUnknown)
    assert connection.closed


# -- threads -----------------------------------------------------------------------------------------


@pytest.fixture
def sync_app(postgres_server: PostgresServer, schema: str) -> Iterator[Dibs]:
    app = Dibs(f"{postgres_server.url}?schema={schema}", call_timeout=2.0)
    with app.sync:
        yield app


@pytest.fixture
def loop_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls that an event loop runs."""
    calls: list[str] = []
    start = LoopCall.start

    def noted(call: LoopCall[Any], loop: Any) -> None:
        calls.append(call.async_form)
        start(call, loop)

    monkeypatch.setattr(LoopCall, "start", noted)
    return calls


def connections_for_threads(app: Dibs) -> ThreadConnections:
    storage: Any = app.storage
    threads: ThreadConnections = storage._server.for_threads
    return threads


def warm_threads(app: Dibs) -> None:
    """Enqueue until the storage has a connection for threads."""
    end = time.monotonic() + 30
    while not connections_for_threads(app)._idle:
        app.sync.queue("q").enqueue("warm")
        assert time.monotonic() < end
    assert app.sync.queue("q").clear() > 0


def test_a_blocking_enqueue_needs_no_event_loop(sync_app: Dibs, loop_calls: list[str]) -> None:
    warm_threads(sync_app)
    loop_calls.clear()
    tickets = [sync_app.sync.queue("q").enqueue(n, id=f"{n % 8}") for n in range(10)]

    assert [] == loop_calls
    assert ["queued"] * 8 + ["updated"] * 2 == [ticket.verdict for ticket in tickets]
    revisions = [ticket.revision for ticket in tickets]
    assert sorted(set(revisions)) == revisions
    assert 8 == sync_app.sync.queue("q").counts().waiting


def test_a_request_with_options_takes_the_event_loop(sync_app: Dibs, loop_calls: list[str]) -> None:
    warm_threads(sync_app)
    loop_calls.clear()

    assert "queued" == sync_app.sync.queue("q").enqueue(1, delay=5).verdict
    assert ["await queue.enqueue(...)"] == loop_calls
    assert 1 == sync_app.sync.queue("q").counts().scheduled


def test_a_bad_argument_is_refused_on_the_thread(sync_app: Dibs, loop_calls: list[str]) -> None:
    warm_threads(sync_app)
    loop_calls.clear()
    with pytest.raises(Refused) as refused:
        sync_app.sync.queue("q").enqueue(1, id="x" * 513)
    assert "id" == refused.value.field
    assert [] == loop_calls


def test_a_locked_id_is_left_to_the_event_loop(
    sync_app: Dibs, loop_calls: list[str], postgres_server: PostgresServer, schema: str
) -> None:
    warm_threads(sync_app)
    sync_app.sync.queue("q").enqueue(1, id="locked")
    loop_calls.clear()
    options = f"-c search_path={schema}"
    with psycopg.connect(postgres_server.url, options=options) as other:
        other.execute("SELECT * FROM live WHERE id = 'locked' FOR UPDATE")
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(sync_app.sync.queue("q").enqueue, 2, id="locked")
            while not loop_calls and not call.done():
                time.sleep(0.01)
            other.rollback()
            assert "updated" == call.result(30).verdict


def test_a_lost_connection_of_a_thread_is_an_unknown_outcome(
    sync_app: Dibs, postgres_server: PostgresServer, schema: str
) -> None:
    warm_threads(sync_app)
    options = f"-c search_path={schema}"
    with psycopg.connect(postgres_server.url, options=options) as other:
        other.execute(LOCK_ALL)
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(sync_app.sync.queue("q").enqueue, 1)
            while not other.execute(END_OTHERS).fetchall():
                time.sleep(0)
            error = call.exception(30)
        other.rollback()

    assert isinstance(error, OutcomeUnknown)
    assert "queued" == sync_app.sync.queue("q").enqueue(2).verdict


def test_a_server_that_does_not_answer_a_thread_is_an_unknown_outcome(
    sync_app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_threads(sync_app)
    threads = connections_for_threads(sync_app)
    (connection,) = threads._idle
    # A statement of the same name that takes longer than the deadline of the call.
    connection.pgconn.exec_(b"DEALLOCATE dibs_enqueue_one")
    connection.pgconn.exec_(
        b"PREPARE dibs_enqueue_one (text, text, text, bytea) AS SELECT pg_sleep(60), $1, $2, $3, $4"
    )
    with pytest.raises(OutcomeUnknown, match="no answer within 2 s"):
        sync_app.sync.queue("q").enqueue(1)

    assert connection.closed
    assert set() == threads._all


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signal.setitimer does not exist here")
def test_an_exception_of_a_signal_handler_leaves_no_reply_for_another_call(
    sync_app: Dibs, postgres_server: PostgresServer, schema: str
) -> None:
    warm_threads(sync_app)
    (connection,) = connections_for_threads(sync_app)._idle
    connection.pgconn.exec_(b"DEALLOCATE dibs_enqueue_one")
    connection.pgconn.exec_(
        b"PREPARE dibs_enqueue_one (text, text, text, bytea) AS SELECT pg_sleep(60), $1, $2, $3, $4"
    )

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            sync_app.sync.queue("q").enqueue(1, id="first")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert connection.closed
    ticket = sync_app.sync.queue("q").enqueue(2, id="second")

    status = sync_app.sync.queue("q").get("second")
    assert status is not None
    assert ticket.revision == status.revision


def test_more_threads_than_connections_enqueue_at_once(sync_app: Dibs) -> None:
    def enqueue(n: int) -> str:
        return sync_app.sync.queue("q").enqueue(n, id=f"{n}").id

    with ThreadPoolExecutor(4 * MAX_FOR_THREADS) as threads:
        ids = [*threads.map(enqueue, range(200))]

    assert [f"{n}" for n in range(200)] == ids
    assert 200 == sync_app.sync.queue("q").counts().waiting
    assert len(connections_for_threads(sync_app)._all) <= MAX_FOR_THREADS


def test_after_close_an_enqueue_is_refused_and_no_connection_is_left(
    postgres_server: PostgresServer, schema: str
) -> None:
    app = Dibs(f"{postgres_server.url}?schema={schema}")
    app.sync.open()
    warm_threads(app)
    threads = connections_for_threads(app)
    app.sync.close()

    assert ([], set()) == (threads._idle, threads._all)
    with pytest.raises(DibsError, match="closed"):
        app.sync.queue("q").enqueue(1)


async def test_a_close_during_the_end_of_a_call_leaves_no_connection(storage: PostgresStorage) -> None:
    class ClosedMeanwhile(list[PooledConnection]):
        def append(self, connection: PooledConnection, /) -> None:
            threads._closed = True
            threads.close_idle()
            super().append(connection)

    threads = ThreadConnections(storage._server._connect_prepared)
    await threads._open_one()
    (connection,) = threads._idle
    threads._idle = ClosedMeanwhile(threads._idle)
    columns = threads.call((b"q", b"100", b"x", b"1"), 30)

    assert columns is not None
    assert connection.closed
    assert ([], set()) == (threads._idle, threads._all)


@pytest.mark.parametrize("error", [psycopg.OperationalError("too many clients"), NotRunning("is not open")])
async def test_after_a_failed_opening_there_is_a_pause(error: Exception) -> None:
    attempts: list[None] = []

    async def connect() -> PooledConnection:
        attempts.append(None)
        raise error

    threads = ThreadConnections(connect)
    for _ in range(3):
        threads.open_one()
        await asyncio.sleep(0.01)
    assert [None] == attempts
    await threads.close()
