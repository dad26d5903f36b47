"""Callers that go away, and a door that is closed while others wait: the storage stays sound."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import NotRunning
from dibs.storage.file import FileStorage
from dibs.storage.indexed import enqueueing
from tests.storage.file.place import ids_in, opened, request


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_that_is_cancelled_leaves_the_storage_sound(tmp_path: Path, turns: int) -> None:
    """Its verb happened or it did not; every later one is answered, and what is answered is there."""
    async with opened(tmp_path) as storage:
        tasks = [asyncio.create_task(storage.enqueue("q", [request(f"{n:02}")])) for n in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await storage.enqueue("q", [request("last")])
        mine = sorted(id for id, _ in (await storage.list("q", "waiting")).items)
    answered = {f"{n:02}" for n, result in enumerate(results) if not isinstance(result, BaseException)}

    assert mine == await ids_in(tmp_path)
    assert answered | {"last"} <= set(mine)
    assert {f"{n:02}" for n in range(1, 20, 2)} <= answered


def gate(storage: FileStorage) -> threading.Event:
    """Hold up the storage's thread until the event is set."""
    opens = threading.Event()
    assert storage._thread is not None
    storage._thread.submit(opens.wait)
    return opens


async def test_a_wait_that_is_cancelled_while_it_joins_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        held = gate(storage)
        task = asyncio.create_task(storage.wait(["q"], timeout=45.0))
        await asyncio.sleep(0)
        task.cancel()
        held.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await storage.get("q", ["a"])

        assert not storage._wakeups._by_queue


async def test_a_wait_that_is_cancelled_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        task = await joined(storage)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await storage.get("q", ["a"])

        assert not storage._wakeups._by_queue


async def joined(storage: FileStorage) -> asyncio.Task[Any]:
    """A wait that is known to wait."""
    task = asyncio.create_task(storage.wait(["q"], timeout=45.0))
    while not storage._wakeups._by_queue:  # noqa: ASYNC110 - nobody is told that the thread has joined it
        await asyncio.sleep(0)
    return task


async def test_closing_ends_the_waits_that_are_pending(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    await storage.open()
    tasks = [await joined(storage), asyncio.create_task(storage.wait(["q"], for_="events", timeout=45.0))]
    await asyncio.sleep(0)
    await storage.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [NotRunning, NotRunning] == [type(result) for result in results]


async def test_a_verb_that_had_not_begun_when_the_door_closed_is_refused(tmp_path: Path) -> None:
    """On its way to the thread or later: refused, and never left without an answer."""
    storage = opened(tmp_path)
    await storage.open()
    held = gate(storage)
    early = asyncio.create_task(storage.get("q", ["a"]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0)
    with pytest.raises(NotRunning):
        await storage.get("q", ["a"])
    held.set()
    await closing

    assert [NotRunning] == [type(r) for r in await asyncio.gather(early, return_exceptions=True)]


async def test_a_storage_can_be_closed_twice_and_opened_again(tmp_path: Path) -> None:
    """What others did meanwhile is there, and waits are woken again."""
    storage = opened(tmp_path, poll=60.0)
    async with storage:
        await storage.wait(["q"], timeout=0)
    await storage.close()
    async with storage, opened(tmp_path) as other:
        token = (await storage.claim("q", "none", 1)).token
        task = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=45.0))
        while not storage._wakeups._by_queue:  # noqa: ASYNC110 - nobody is told that the thread has joined it
            await asyncio.sleep(0)
        await other.enqueue("q", [request("a")])

        assert (await task).woken


async def test_a_step_that_cannot_be_written_down_has_not_happened(tmp_path: Path) -> None:
    """What no encoder takes is undone like what no disk takes: index and directory agree."""
    unsayable: Any = object()
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("a")])
        with pytest.raises(TypeError):
            await storage._run_step(
                None, enqueueing.enqueue, "q", [request("b", payload=unsayable), request("c")]
            )
        mine = [id for id, _ in (await storage.list("q", "waiting")).items]
        await storage.enqueue("q", [request("d")])

    assert ["a"] == mine
    assert ["a", "d"] == await ids_in(tmp_path)
