"""The threads of `def` handlers."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

import pytest

from dibs.worker.execution.executor import HandlerThreads

T = TypeVar("T")


async def results(queue: asyncio.Queue[T], number: int) -> list[T]:
    async with asyncio.timeout(10):
        return [await queue.get() for _ in range(number)]


async def test_what_threads_return_is_collected_on_the_loop() -> None:
    seen, queue = set[int](), asyncio.Queue[int]()

    def collect(result: int) -> None:
        seen.add(threading.get_ident())
        queue.put_nowait(result)

    threads = HandlerThreads(asyncio.get_running_loop(), collect)
    for number in range(1000):
        threads.run(lambda number=number: number)  # type: ignore[misc]
    found = await results(queue, 1000)
    threads.close()

    assert list(range(1000)) == sorted(found)
    assert {threading.get_ident()} == seen


async def test_there_are_as_many_threads_as_are_busy_at_once() -> None:
    queue = asyncio.Queue[int]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    together = threading.Barrier(50)
    for _ in range(50):
        threads.run(lambda: together.wait(10))
    found = await results(queue, 50)
    threads.close()

    assert list(range(50)) == sorted(found)


async def test_threads_are_used_again() -> None:
    queue = asyncio.Queue[str]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    names = set[str]()
    for _ in range(20):
        threads.run(lambda: threading.current_thread().name)
        names |= set(await results(queue, 1))
    threads.close()

    assert 1 == len(names)


@pytest.mark.parametrize("busy", [False, True])
async def test_no_thread_stays_after_its_work(*, busy: bool) -> None:
    queue = asyncio.Queue[threading.Thread]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    go = threading.Event()

    def work() -> threading.Thread:
        go.wait(10)
        return threading.current_thread()

    threads.run(work)
    if busy:
        threads.close()
    go.set()
    [thread] = await results(queue, 1)
    if not busy:
        threads.close()
    await asyncio.to_thread(thread.join, 10)

    assert not thread.is_alive()
