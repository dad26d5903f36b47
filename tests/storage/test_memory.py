"""The memory storage: its names, its lock, its clock and its waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from dibs.errors import NotRunning, Refused
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.indexed import enqueueing
from dibs.storage.indexed.index import Index
from dibs.storage.memory import MemoryStorage, temporary_url
from dibs.storage.registry import open_storage, remove_storage

LONG = 60_000


def request(id: str = "a", **rest: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, **rest))


# -- places ------------------------------------------------------------------------------------------


async def test_a_named_place_is_the_same_for_all_who_open_it() -> None:
    async with open_storage("memory:shared-place") as one, open_storage("memory:shared-place") as two:
        await one.enqueue("q", [request()])

        assert 1 == (await two.counts(["q"]))["q"].waiting


async def test_a_removed_storage_is_forgotten() -> None:
    """The kit creates thousands of storages in one process."""
    url = temporary_url("memory:", "removed-place")
    async with open_storage(url) as one:
        await one.enqueue("q", [request()])
    await remove_storage(url)

    async with open_storage(url) as two:
        assert 0 == (await two.counts(["q"]))["q"].waiting


async def test_a_named_place_outlives_its_doors() -> None:
    async with open_storage("memory:kept-place") as one:
        await one.enqueue("q", [request()])
    async with open_storage("memory:kept-place") as two:
        assert 1 == (await two.counts(["q"]))["q"].waiting


async def test_a_place_without_a_name_is_one_s_own() -> None:
    async with open_storage("memory:") as one, open_storage("memory:") as two:
        await one.enqueue("q", [request()])

        assert 0 == (await two.counts(["q"]))["q"].waiting


async def test_two_places_of_two_names_share_nothing() -> None:
    async with open_storage("memory:left") as one, open_storage("memory:right") as two:
        await one.enqueue("q", [request()])

        assert [] == await two.queues()


async def test_the_durability_says_that_jobs_end_with_the_process() -> None:
    """The capabilities deny `durable` and `shared`, and the repr shows the URL."""
    storage = MemoryStorage()

    assert "end with this process" in storage.durability
    assert not storage.capabilities.durable
    assert not storage.capabilities.shared
    assert "memory:" in repr(storage)


# -- the clock ---------------------------------------------------------------------------------------


async def test_now_is_refused_on_a_clock_of_the_system() -> None:
    async with MemoryStorage() as storage:
        with pytest.raises(Refused) as caught:
            await storage.enqueue("q", [request()], now=5)

        assert "now" == caught.value.field
        assert [] == await storage.queues()


# -- whole or not at all -----------------------------------------------------------------------------


async def test_a_verb_that_raises_changes_nothing() -> None:
    """A verb that raises leaves no change."""
    async with MemoryStorage(clock="manual") as storage:
        await storage.enqueue("q", [request()], now=10)
        before = (await storage.get("q", ["a", "b"]), await storage.queues())

        def breaking(index: Index) -> None:
            enqueueing.enqueue(index, "q", [request(), request("b")])
            enqueueing.enqueue(index, "other", [request()])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await storage._run_step(None, breaking)

        assert before == (await storage.get("q", ["a", "b"]), await storage.queues())
        assert 1 == (await storage.counts(["q"]))["q"].waiting


async def test_nothing_is_answered_before_opening_or_after_closing() -> None:
    storage = MemoryStorage()
    with pytest.raises(NotRunning):
        await storage.get("q", ["a"])
    async with storage:
        await storage.get("q", ["a"])
    with pytest.raises(NotRunning):
        await storage.enqueue("q", [request()])


# -- waits -------------------------------------------------------------------------------------------


async def waits(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a wait, and return its task once it is waiting."""
    task = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_closing_ends_the_waits() -> None:
    storage = MemoryStorage()
    await storage.open()
    task = await waits(storage.wait(["q"], timeout=60))
    await storage.close()

    with pytest.raises(NotRunning):
        await asyncio.wait_for(task, 10)
    assert no_waiter_is_left(storage)


async def test_a_cancelled_wait_leaves_no_trace() -> None:
    async with MemoryStorage() as storage:
        for watch in ("work", "events", "ids"):
            task = await waits(storage.wait(["q", "q"], for_=watch, ids=["a"], timeout=60))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        assert no_waiter_is_left(storage)


def no_waiter_is_left(storage: MemoryStorage) -> bool:
    wakeups = storage._shared.wakeups
    return not wakeups._by_queue and not wakeups._by_id


# -- threads -----------------------------------------------------------------------------------------


async def drained(storage: Any) -> list[str]:
    lease = (await storage.grant(["q"], LONG, "last")).lease
    return [job.id for job in (await storage.claim("q", lease, 100)).jobs]


async def test_a_wait_on_one_loop_is_woken_by_an_enqueue_on_another() -> None:
    async with open_storage("memory:two-loops") as storage:
        task = await waits(storage.wait(["q"], timeout=60))

        async def other() -> None:
            async with open_storage("memory:two-loops") as there:
                await there.enqueue("q", [request()])

        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        woken = (await task).woken
        thread.join()

        assert woken
