"""A blocking enqueue on Redis runs on its own thread, on a connection of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs import Dibs, DibsError, OutcomeUnknown, Refused
from dibs.storage.redis.network import blocking
from dibs_conformance.servers import RedisServer


@pytest.fixture
def app(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[Dibs]:
    app = Dibs(f"{redis_server.url}?prefix={request.node.name}")
    with app.sync:
        yield app


def warm(app: Dibs) -> None:
    """Enqueue until the storage has a connection for threads."""
    servers = app.storage._calls.servers  # type: ignore[attr-defined]
    end = time.monotonic() + 30
    while not servers.for_threads._idle:
        app.sync.queue("q").enqueue("warm")
        assert time.monotonic() < end
    assert app.sync.queue("q").clear() > 0


def test_an_enqueue_needs_no_event_loop(app: Dibs, loop_calls: list[str]) -> None:
    warm(app)
    loop_calls.clear()
    tickets = [app.sync.queue("q").enqueue(n) for n in range(10)]

    assert [] == loop_calls
    assert 10 == app.sync.queue("q").counts().waiting
    revisions = [ticket.revision for ticket in tickets]
    assert sorted(set(revisions)) == revisions


def test_the_errors_are_those_of_the_event_loop(app: Dibs, loop_calls: list[str]) -> None:
    warm(app)
    loop_calls.clear()
    with pytest.raises(Refused) as refused:
        app.sync.queue("q").enqueue(1, id="x" * 513)
    assert "id" == refused.value.field
    assert [] == loop_calls


def test_a_server_that_has_lost_the_script_gets_it_from_the_event_loop(
    app: Dibs, redis_server: RedisServer, loop_calls: list[str]
) -> None:
    warm(app)
    loop_calls.clear()
    redis_server.forget_code()
    tickets = [app.sync.queue("q").enqueue(n) for n in range(2)]

    assert ["queued"] * 2 == [ticket.verdict for ticket in tickets]
    assert ["await queue.enqueue(...)"] == loop_calls


def test_a_connection_that_the_server_has_closed_is_replaced(
    app: Dibs, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "IDLE_CHECK", 0.0)
    warm(app)
    redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(0.05)

    assert "queued" == app.sync.queue("q").enqueue(1).verdict
    assert 1 == app.sync.queue("q").counts().waiting


def test_a_connection_that_is_lost_during_a_call_is_an_unknown_outcome(
    app: Dibs, redis_server: RedisServer
) -> None:
    warm(app)
    redis_server.execute("CLIENT", "PAUSE", 60_000, "WRITE")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(app.sync.queue("q").enqueue, 1)
        time.sleep(0.1)
        redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        error = call.exception(30)
    redis_server.execute("CLIENT", "UNPAUSE")

    assert isinstance(error, OutcomeUnknown)
    assert "lost the reply" in str(error)
    assert "queued" == app.sync.queue("q").enqueue(2).verdict


def test_the_deadline_of_the_app_ends_a_call_of_a_thread(redis_server: RedisServer) -> None:
    app = Dibs(f"{redis_server.url}?prefix=deadline", call_timeout=0.5)
    with app.sync:
        warm(app)
        redis_server.execute("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            with pytest.raises(OutcomeUnknown, match="TimeoutError"):
                app.sync.queue("q").enqueue(1)
        finally:
            redis_server.execute("CLIENT", "UNPAUSE")
        assert "queued" == app.sync.queue("q").enqueue(2).verdict


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signal.setitimer does not exist here")
def test_an_exception_of_a_signal_handler_leaves_no_reply_for_another_call(
    app: Dibs, redis_server: RedisServer
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    warm(app)
    before = signal.signal(signal.SIGALRM, interrupt)
    redis_server.execute("CLIENT", "PAUSE", 500, "WRITE")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            app.sync.queue("q").enqueue(1, id="first")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ticket = app.sync.queue("q").enqueue(2, id="second")

    status = app.sync.queue("q").get("second")
    assert status is not None
    assert ticket.revision == status.revision


def test_more_threads_than_connections_enqueue_at_once(app: Dibs) -> None:
    def enqueue(n: int) -> str:
        return app.sync.queue("q").enqueue(n, id=f"{n}").id

    with ThreadPoolExecutor(2 * blocking.MAX_BLOCKING) as threads:
        ids = [*threads.map(enqueue, range(1000))]

    assert [f"{n}" for n in range(1000)] == ids
    assert 1000 == app.sync.queue("q").counts().waiting


def test_after_close_an_enqueue_is_refused_and_no_socket_is_left(redis_server: RedisServer) -> None:
    app = Dibs(f"{redis_server.url}?prefix=closed")
    app.sync.open()
    warm(app)
    servers = app.storage._calls.servers  # type: ignore[attr-defined]
    app.sync.close()

    assert ([], set()) == (servers.for_threads._idle, servers.for_threads._all)
    with pytest.raises(DibsError, match="closed"):
        app.sync.queue("q").enqueue(1)
