"""`supersede=True`: an enqueue that asks the active run of its id to end, and takes its place."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, JobCancelled, Queue, Update, current_job
from tests.client.manual_claims import claimed

SEEN: list[int] = []
STARTED = asyncio.Event()


async def render(version: int) -> int:
    SEEN.append(version)
    if version == 1:
        STARTED.set()
        await asyncio.Event().wait()
    return current_job().attempt


async def test_each_waiter_gets_the_end_of_its_own_run(any_queue: Queue) -> None:
    old = await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        new = await any_queue.enqueue(2, id="a", supersede=True)
        status = await new.status()
        await claim.retry()

    assert ("blocked", "blocked") == (new.verdict, status.state)
    with pytest.raises(JobCancelled):
        await old.result(wait=10)
    async with claimed(any_queue) as claim:
        assert (2, 1) == (claim.data, claim.attempt)
        await claim.complete("new")
    assert "new" == await new.result(wait=10)


async def test_a_run_that_completes_first_keeps_its_result(any_queue: Queue) -> None:
    old = await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await any_queue.enqueue(2, id="a", on_conflict=Update(supersede=True))
        await claim.complete("old")

    assert "old" == await old.result(wait=10)


async def test_a_handler_is_cancelled_and_the_new_job_runs(app: Dibs) -> None:
    """The worker learns of the request by its heartbeat."""
    task = app.task(queue="render")(render)
    await task.options(id="page").enqueue(1)
    working = asyncio.create_task(app.work(until="empty", handle_signals=False))
    await asyncio.wait_for(STARTED.wait(), 30)
    new = await task.options(id="page", supersede=True).enqueue(2)

    assert 1 == await new.result(wait=30)
    await asyncio.wait_for(working, 30)
    assert [1, 2] == SEEN
