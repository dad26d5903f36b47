"""Blocking calls on an event loop that ends, is stopped or was closed before they are done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, DibsError, NotRunning, OutcomeUnknown, Refused
from dibs.client.sync import background_loop
from dibs.client.sync.background_loop import LoopCall
from dibs.storage.redis.network import blocking
from dibs_conformance.servers import RedisServer
from tests.storage_urls import unexpected_lines


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Start a function on a thread. Return a function that waits for its result, or its error of dibs."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except DibsError as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()

    def wait() -> Any:
        thread.join(30)
        return results[0]

    return wait


@pytest.mark.parametrize(
    ("form", "error"), [("await queue.counts(...)", NotRunning), ("await queue.enqueue(...)", OutcomeUnknown)]
)
def test_the_error_of_a_call_whose_loop_ends(form: str, error: type[DibsError]) -> None:
    app = Dibs("memory:")

    async def main() -> Callable[[], Any]:
        await app.open()
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def endless() -> None:
            started.set()
            await loop.create_future()

        wait = in_thread(lambda: background_loop.run(app._storage_handle, form, endless()))
        await started.wait()
        return wait

    told = asyncio.run(main())()

    assert error is type(told)
    assert f"ended during {form}" in str(told)


def test_an_enqueue_whose_loop_ends_is_told_the_truth(any_url: str) -> None:
    app = Dibs(any_url)

    async def main(turns: int) -> Callable[[], Any]:
        await app.open()
        called = threading.Event()

        def enqueue() -> Any:
            called.set()
            return app.sync.queue("q").enqueue(1, id=f"{turns}").verdict

        wait = in_thread(enqueue)
        called.wait(10)
        for _ in range(turns):
            await asyncio.sleep(0)
        return wait

    told = {f"{turns}": asyncio.run(main(turns))() for turns in range(15)}
    stored = {one.id for one in app.sync.queue("q").list("waiting")}
    app.sync.close()

    assert {id for id, answer in told.items() if answer == "queued"} <= stored
    assert all(isinstance(told[id], OutcomeUnknown) for id in told if told[id] != "queued")


def test_a_call_that_a_stopped_loop_never_started_runs_on_the_background_loop() -> None:
    stopped = asyncio.new_event_loop()
    call = LoopCall("await it", asyncio.sleep(0, "done"))
    call.start(stopped)

    assert not call.is_done()
    call.start(background_loop.BACKGROUND.loop())
    assert call.is_done()
    assert "done" == call.future.result()
    stopped.close()


def test_a_call_on_a_closed_loop_raises_at_once() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        LoopCall("await it", coroutine).start(closed)
    coroutine.close()


# -- Programs that use blocking handles at exit, after a fork, and from threads after the main thread --


OPENED = """
import atexit, os, sys, threading
from dibs import Dibs, DibsError

app = Dibs(os.environ["DIBS_URL"])
queue = app.sync.queue("q")
"""

LAST_WORDS = """
class Late:
    def __del__(self):
        try:
            queue.enqueue(3)
        except DibsError as error:
            print(type(error).__name__, "close the app before" in str(error))

late = Late()
atexit.register(lambda: print("at exit", queue.enqueue(2).verdict))
print(queue.enqueue(1).verdict)
"""

#: The main thread has ended, and Python waits for the other threads.
AFTER_MAIN = """
def work():
    threading.main_thread().join()
    print(queue.enqueue_many(range(3))[2].verdict, queue.counts().waiting)
    app.sync.close()

queue.counts()
threading.Thread(target=work).start()
"""

FORKED = """
print(queue.enqueue(1).verdict, flush=True)
child = os.fork()
if child == 0:
    print("child", queue.enqueue(2).verdict, queue.counts().waiting)
    app.sync.close()
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print("parent", queue.enqueue(3).verdict, queue.counts().waiting)
"""

#: Program -> its source, and the lines that it prints.
PROGRAMS = {
    "last words": (LAST_WORDS, ["queued", "at exit queued", "NotRunning True"]),
    "threads that go on": (AFTER_MAIN, ["queued 3"]),
    "a fork": (FORKED, ["queued", "child queued 2", "parent queued 3"]),
}


@pytest.mark.parametrize(("program", "printed"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_with_all_it_said_done(any_url: str, program: str, printed: list[str]) -> None:
    if program is FORKED and (any_url.startswith("memory") or not hasattr(os, "fork")):
        pytest.skip("there is nothing to share with a fork: test_storage_handle.py covers the error")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", OPENED + program],
        env={**os.environ, "DIBS_URL": any_url},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (printed, []) == (done.stdout.splitlines(), unexpected_lines(done.stderr))
    assert 0 == done.returncode


# -- A blocking enqueue on Redis runs on its own thread, on a connection of its own ------------------


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
