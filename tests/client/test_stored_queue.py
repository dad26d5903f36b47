"""The stored jobs of a queue as a whole: `clear`, on each storage."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import LeaseLost, Queue
from tests.client.manual_claims import claimed

STATES: tuple[Any, ...] = ("waiting", "active", "blocked", "completed", "failed", "cancelled")


async def left(queue: Queue) -> dict[str, list[str]]:
    """Return the ids of each state that has any."""
    found = {state: [status.id async for status in queue.list(state)] for state in STATES}
    return {state: ids for state, ids in found.items() if ids}


async def fill(queue: Queue) -> None:
    """Enqueue a job for each end, one that waits, one that is scheduled."""
    for id in ("completed", "failed"):
        await queue.enqueue(1, id=id)
        async with claimed(queue) as claim:
            await (claim.complete() if id == "completed" else claim.fail("no"))
    await queue.enqueue(1, id="cancelled")
    await queue.cancel("cancelled")
    await queue.enqueue_many([1, 2])
    await queue.enqueue(1, id="later", delay=3600)


async def test_a_cleared_queue_has_no_job_and_no_outcome(any_queue: Queue) -> None:
    await fill(any_queue)

    assert await any_queue.clear() == 3
    assert await left(any_queue) == {}
    assert await any_queue.clear() == 0


async def test_an_active_job_stays_and_ends_as_usual(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await any_queue.enqueue(2, id="a")
        await fill_waiting(any_queue)

        assert await any_queue.clear() == 3
        assert await left(any_queue) == {"active": ["a"]}
        await claim.complete()
    assert await left(any_queue) == {"completed": ["a"]}


async def fill_waiting(queue: Queue) -> None:
    await queue.enqueue_many([1, 2])


async def test_running_removes_active_jobs_too(any_queue: Queue) -> None:
    for id in ("a", "b"):
        await any_queue.enqueue(1, id=id)
    async with any_queue.receive(wait=0) as claims:
        first, second = await anext(claims), await anext(claims)
        await second.hand_off()

        assert await any_queue.clear(running=True) == 2
        assert await left(any_queue) == {}
        with pytest.raises(LeaseLost):
            await first.complete()


async def test_a_queue_of_several_pages_is_cleared(any_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.client.stored_queue.PAGE_SIZE", 3)
    await any_queue.enqueue_many(range(10))

    assert await any_queue.clear() == 10
    assert await left(any_queue) == {}
