"""The thread of a file storage: order, cancelled callers, errors, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dibs.storage.file.step_thread import StepThread


@pytest.fixture
def thread() -> Iterator[StepThread]:
    started = StepThread("test")
    yield started
    started.stop()
    started._thread.join(timeout=10)
    assert not started._thread.is_alive()


async def test_work_runs_in_order(thread: StepThread) -> None:
    ran: list[int] = []
    thread.submit(lambda: ran.append(0))
    await asyncio.gather(*(thread.run(lambda n=n: ran.append(n)) for n in range(1, 10)))  # type: ignore[misc]

    assert list(range(10)) == ran


async def test_the_caller_gets_an_error(thread: StepThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    thread.submit(lambda: 1 // 0)

    assert 2 == await thread.run(lambda: 2)


async def test_work_of_a_cancelled_caller_does_not_start(thread: StepThread) -> None:
    gate, ran = threading.Event(), []
    thread.submit(gate.wait)
    waiting = asyncio.create_task(thread.run(lambda: ran.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await thread.run(int)

    assert [] == ran


async def test_a_cancelled_step_cancels_its_caller(thread: StepThread) -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await thread.run(cancelled)


def test_a_thread_outlives_the_loop_of_a_caller(thread: StepThread) -> None:
    gate = threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(thread.run(gate.wait))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    gate.set()

    assert 3 == asyncio.run(thread.run(lambda: 3))


async def test_without_a_thread_the_caller_runs_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the interpreter shuts down, it starts no more threads."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert 4 == await StepThread("test").run(lambda: 4)


def test_the_thread_of_a_dropped_storage_ends() -> None:
    dropped = StepThread("test")
    thread = dropped._thread
    del dropped
    thread.join(timeout=10)

    assert not thread.is_alive()
