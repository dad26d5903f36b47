"""Single enqueues of threads without an event loop on Postgres."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dibs import Dibs, DibsError, NotRunning, OutcomeUnknown, Refused, StorageReadOnly
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.network.connections import PooledConnection
from dibs.storage.postgres.network.thread_connections import MAX_FOR_THREADS, ThreadConnections
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.test_direct_enqueue import END_OTHERS, LOCK_ALL


@pytest.fixture
def sync_app(postgres_server: PostgresServer, schema: str) -> Iterator[Dibs]:
    app = Dibs(f"{postgres_server.url}?schema={schema}", call_timeout=2.0)
    with app.sync:
        yield app


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


def test_a_session_of_a_thread_that_has_become_read_only_is_closed(sync_app: Dibs) -> None:
    warm_threads(sync_app)
    (connection,) = connections_for_threads(sync_app)._idle
    connection.pgconn.exec_(b"SET default_transaction_read_only = on")
    with pytest.raises(StorageReadOnly):
        sync_app.sync.queue("q").enqueue(1)

    assert connection.closed
    assert "queued" == sync_app.sync.queue("q").enqueue(2).verdict


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


async def test_no_connection_is_opened_while_one_is_idle(storage: PostgresStorage) -> None:
    threads = ThreadConnections(storage._server._connect_prepared)
    await threads._open_one()
    threads.open_one()

    assert threads._opening is None
    await threads.close()


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
