"""Blocking handles: calls from threads, signals and errors."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs import ConfigurationError, Dibs, NotRunning, Refused, WaitTimeout
from dibs.client.sync import background_loop as bridge
from dibs.client.sync.app import BlockingDibs
from tests.client import handlers


@pytest.fixture
def here(storage_url: str) -> Iterator[BlockingDibs]:
    """Return the blocking form of an open app."""
    with Dibs(storage_url).sync as app:
        yield app


def test_enqueue_claim_and_result(here: BlockingDibs) -> None:
    queue = here.queue("q")
    ticket = queue.enqueue({"to": "x"}, id="a")
    with queue.receive(wait=0) as claims:
        for claim in claims:
            assert (claim.id, claim.data) == ("a", {"to": "x"})
            claim.progress(0.5)
            claim.complete("done")

    assert (ticket.verdict, ticket.result(0), ticket.status().state) == ("queued", "done", "completed")


def test_every_kind_of_method_has_a_twin(here: BlockingDibs) -> None:
    queue = here.queue("q")
    tickets = queue.enqueue_many([1, 2, queue.bind(3, id="c")])

    assert [ticket.verdict for ticket in tickets] == ["queued"] * 3
    assert sorted(status.id for status in queue.list("waiting")) == sorted(ticket.id for ticket in tickets)
    page = queue.list("waiting", limit=2)
    assert len([*page, *queue.list("waiting", after=page.cursor)]) == 3
    assert [one.name for one in here.queues()] == ["q"]
    assert queue.cancel("c") == "cancelled"
    assert queue.counts().waiting == 2
    with queue.events("") as events:
        assert next(events).kind == "cancelled"
    queue.pause()
    with queue.receive(wait=0) as claims:
        assert list(claims) == []


def test_a_task_and_its_options(storage_url: str) -> None:
    app = Dibs(storage_url)
    task = app.task(handlers.thumbnail)
    ticket = task.sync.options(id="a", priority=3).enqueue("a.png", width=5)

    assert ticket.id == "a"
    assert task.sync.queue.counts().waiting == 1
    assert len(task.sync.enqueue_many([task.sync.bind("b")])) == 1
    with pytest.raises(WaitTimeout):
        task.sync.options(wait=0).enqueue_and_wait("c.png")
    app.sync.close()


def test_a_queue_may_wait_for_the_result(here: BlockingDibs) -> None:
    queue = here.queue("q")

    def complete() -> None:
        with queue.receive(max_jobs=1) as claims:
            next(claims).complete("done")

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(complete)
        assert queue.enqueue_and_wait(1, wait=30) == "done"
        worker.result()
    with pytest.raises(WaitTimeout):
        queue.enqueue_and_wait(1, wait=0)


def test_errors_arrive_as_they_are(here: BlockingDibs) -> None:
    with pytest.raises(Refused):
        here.queue("q").enqueue(float("nan"))
    with pytest.raises(WaitTimeout):
        here.queue("q").enqueue(1).result(0)


def test_after_close_it_says_so(storage_url: str) -> None:
    app = Dibs(storage_url)
    with app.sync:
        pass

    with pytest.raises(NotRunning):
        app.sync.queue("q").enqueue(1)


def test_several_threads_may_block_at_once(any_url: str) -> None:
    with Dibs(any_url).sync as app, ThreadPoolExecutor(9) as pool:
        queue = app.queue("q")
        tickets = list(pool.map(queue.enqueue, range(200)))
        assert queue.counts().waiting == 200
        assert len({ticket.id for ticket in tickets}) == 200

        results = pool.map(lambda ticket: ticket.result(60), tickets)
        with queue.receive(max_jobs=200, wait=0) as claims:
            for claim in claims:
                claim.complete(claim.data)
        assert list(results) == list(range(200))


async def test_on_a_running_loop_it_names_the_async_form(app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match=r"await queue\.enqueue"):
        app.sync.queue("q").enqueue(1)
    with pytest.raises(ConfigurationError, match="async with"), app.sync.queue("q").receive():
        pass
    with pytest.raises(ConfigurationError, match="async for"):
        list(app.sync.queue("q").list("waiting"))


async def test_from_a_thread_it_goes_to_the_loop_where_the_app_is_open(app: Dibs) -> None:
    """A `def` handler runs on a thread, and its app is open on the worker's loop."""
    ticket = await asyncio.to_thread(app.sync.queue("q").enqueue, 1)

    assert (await app.queue("q").counts()).waiting == 1
    assert ticket.verdict == "queued"


def test_an_interrupted_wait_ends_the_call(here: BlockingDibs, monkeypatch: pytest.MonkeyPatch) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        started.wait(5)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.exception", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bridge.run(here._storage_handle, "await it", endless())
    monkeypatch.undo()

    assert cancelled.wait(5)
    assert here.queue("q").counts().waiting == 0, "the loop is as good as new"


def test_a_loop_that_ends_leaves_no_thread_waiting(storage_url: str) -> None:
    app = Dibs(storage_url)
    threads = ThreadPoolExecutor(1)

    async def program() -> Any:
        await app.open()
        ticket = await app.queue("q").enqueue(1)
        before = len(asyncio.all_tasks())
        waiting = threads.submit(ticket.sync.result, None)
        while len(asyncio.all_tasks()) <= before:  # noqa: ASYNC110 - until the thread's call is on this loop
            await asyncio.sleep(0)
        return waiting

    with pytest.raises(NotRunning, match=r"ended during await ticket\.result"):
        asyncio.run(program()).result(10)


def test_work_runs_on_the_callers_own_thread(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals arrive only on the main thread."""
    from dibs import app as module

    monkeypatch.setattr(module, "WORKER_FUNCTION", f"{__name__}:tell_thread")

    thread: Any = Dibs(storage_url).sync.work()
    assert thread is threading.current_thread()


SYNC_WORKER = """
import os, sys
from dibs import Dibs

app = Dibs(sys.argv[1])

@app.task(queue="held")
def held() -> str:
    os.write(1, b"here\\n")
    return sys.stdin.readline()

held.sync.enqueue()  # opens the app on the background loop
print(app.sync.work(grace=60).total("completed"))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_hears_signals_also_where_the_app_is_open_already(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", SYNC_WORKER, f"file:{tmp_path / 'jobs'}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            assert b"here\n" == worker.stdout.readline()
            worker.send_signal(number)
            out, _ = worker.communicate(b"go\n", timeout=60)
        finally:
            worker.kill()

    assert (0, b"1\n") == (worker.returncode, out)


ELSEWHERE = """
import signal, sys, threading
from dibs import Dibs

app = Dibs(sys.argv[1])

@app.task(queue="q")
def elsewhere() -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

elsewhere.sync.enqueue()
print(app.sync.work().total("completed"))
"""


def test_work_hears_a_signal_that_does_not_end_the_wait_of_its_thread(tmp_path: Path) -> None:
    """A signal just before the wait begins, or on another thread, does not end the wait."""
    command = [sys.executable, "-c", ELSEWHERE, f"file:{tmp_path / 'jobs'}"]
    worker = subprocess.run(command, capture_output=True, timeout=60, check=False)

    assert (0, b"1\n") == (worker.returncode, worker.stdout), worker.stderr.decode()


async def tell_thread(_app: Dibs, **_options: Any) -> threading.Thread:
    return threading.current_thread()


def test_blocking_calls_first_and_a_loop_later(any_url: str) -> None:
    app = Dibs(any_url)

    async def count() -> int:
        return (await app.queue("q").counts()).waiting

    async def count_in_block() -> int:
        async with app:
            return await count()

    app.queue("q").sync.enqueue(1)

    assert asyncio.run(count()) == 1
    assert app.queue("q").sync.counts().waiting == 1
    with app.sync:
        assert asyncio.run(count_in_block()) == 1
        assert app.queue("q").sync.counts().waiting == 1


def test_progress_comes_to_blocking_code_until_the_job_ends(here: BlockingDibs) -> None:
    queue = here.queue("q")
    ticket = queue.enqueue(1)
    received = []
    with queue.receive(max_jobs=1, wait=0) as claims:
        claim = next(claims)
        claim.progress({"done": 0})
        for value in ticket.progress():
            received.append(value)
            if len(received) == 1:
                claim.progress({"done": 1})
            else:
                claim.complete("end")

    assert [{"done": 0}, {"done": 1}] == received
    assert "end" == ticket.result()
