"""Cancelled callers, and calls while the storage closes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import NotRunning
from dibs.storage.file import FileStorage
from dibs.storage.indexed import enqueueing
from tests.storage.file.folder import ids_in, opened, request


@pytest.mark.parametrize("turns", range(6))
async def test_after_a_cancelled_call_index_and_directory_agree(tmp_path: Path, turns: int) -> None:
    """The cancelled call happened or not. All later calls return, and their jobs are stored."""
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


def block_thread(storage: FileStorage) -> threading.Event:
    """Block the storage's thread until the returned event is set."""
    released = threading.Event()
    assert storage._thread is not None
    storage._thread.submit(released.wait)
    return released


async def test_a_wait_that_is_cancelled_at_its_start_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        released = block_thread(storage)
        task = asyncio.create_task(storage.wait(["q"], timeout=45.0))
        await asyncio.sleep(0)
        task.cancel()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await storage.get("q", ["a"])

        assert not storage._wakeups._by_queue


async def test_a_cancelled_wait_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        task = await joined(storage)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await storage.get("q", ["a"])

        assert not storage._wakeups._by_queue


async def joined(storage: FileStorage) -> asyncio.Task[Any]:
    """Start a wait, and return it once it is registered."""
    task = asyncio.create_task(storage.wait(["q"], timeout=45.0))
    while not storage._wakeups._by_queue:  # noqa: ASYNC110 - the thread sends no event
        await asyncio.sleep(0)
    return task


async def test_close_ends_pending_waits(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    await storage.open()
    tasks = [await joined(storage), asyncio.create_task(storage.wait(["q"], for_="events", timeout=45.0))]
    await asyncio.sleep(0)
    await storage.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [NotRunning, NotRunning] == [type(result) for result in results]


async def test_close_ends_waits_before_their_poll_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    storage = opened(tmp_path, poll=600.0)
    await storage.open()
    task = await joined(storage)
    await storage.get("q", ["a"])
    async with asyncio.timeout(45):
        await storage.close()
        with pytest.raises(NotRunning):
            await task
        while set(threading.enumerate()) - before:  # noqa: ASYNC110 - the thread of the storage sends no event
            await asyncio.sleep(0.01)


async def test_a_call_that_has_not_started_when_the_storage_closes_is_refused(tmp_path: Path) -> None:
    """The call raises NotRunning, if it was made before close() and if it was made after it."""
    storage = opened(tmp_path)
    await storage.open()
    released = block_thread(storage)
    early = asyncio.create_task(storage.get("q", ["a"]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0)
    with pytest.raises(NotRunning):
        await storage.get("q", ["a"])
    released.set()
    await closing

    assert [NotRunning] == [type(r) for r in await asyncio.gather(early, return_exceptions=True)]


async def test_a_storage_can_be_closed_twice_and_opened_again(tmp_path: Path) -> None:
    """The opened storage has the changes that another one made while it was closed, and wakes its waits."""
    storage = opened(tmp_path, poll=60.0)
    async with storage:
        await storage.wait(["q"], timeout=0)
    await storage.close()
    async with storage, opened(tmp_path) as other:
        token = (await storage.claim("q", "none", 1)).token
        task = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=45.0))
        while not storage._wakeups._by_queue:  # noqa: ASYNC110 - the thread sends no event
            await asyncio.sleep(0)
        await other.enqueue("q", [request("a")])

        assert (await task).woken


async def test_a_step_that_cannot_be_encoded_is_undone(tmp_path: Path) -> None:
    """As after a failed write, the index has no trace of the step, and the directory has no commit of it."""
    unencodable: Any = object()
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("a")])
        with pytest.raises(TypeError):
            await storage._run_step(
                None, enqueueing.enqueue, "q", [request("b", payload=unencodable), request("c")]
            )
        mine = [id for id, _ in (await storage.list("q", "waiting")).items]
        await storage.enqueue("q", [request("d")])

    assert ["a"] == mine
    assert ["a", "d"] == await ids_in(tmp_path)
