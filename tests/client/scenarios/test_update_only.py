"""`Update(create=False)`: requests that change a live job and never make one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Dibs, JobAbsent, JobEnded, Queue, Update
from tests.client import handlers
from tests.client.manual_claims import claimed

ONLY = Update(create=False)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


async def test_a_waiting_job_is_moved_and_keeps_its_data(any_queue: Queue) -> None:
    await any_queue.enqueue("data", id="a", priority=5)
    ticket = await any_queue.enqueue(id="a", run_at=LATER, on_conflict=ONLY)
    status = await any_queue.get("a")

    assert status is not None
    assert ("updated", "data", 5, LATER) == (ticket.verdict, status.data, status.priority, status.run_at)
    assert ticket.revision == status.revision


async def test_an_id_without_a_live_job_stays_as_it_is(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(id="a", on_conflict=ONLY)

    assert ("absent", 0) == (ticket.verdict, ticket.revision)
    assert "absent" == (await ticket.status()).state
    assert await any_queue.get("a") is None
    for call in (ticket.result(wait=None), any_queue.enqueue_and_wait(id="a", wait=None, on_conflict=ONLY)):
        with pytest.raises(JobAbsent, match=f"{any_queue.name}/a: .*no live job") as absent:
            await asyncio.wait_for(call, 10)
        assert isinstance(absent.value, JobEnded)
        assert ("a", any_queue.name) == (absent.value.id, absent.value.queue)
    with pytest.raises(JobAbsent):
        await anext(ticket.progress())


async def test_a_completed_outcome_is_not_the_result_of_an_absent_request(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await claim.complete("done")

    with pytest.raises(JobAbsent):
        await any_queue.enqueue_and_wait(id="a", on_conflict=ONLY)


async def test_a_request_key_remembers_that_it_was_absent(any_queue: Queue) -> None:
    await any_queue.enqueue(id="a", on_conflict=ONLY, request_key="k")
    await any_queue.enqueue("data", id="a")
    again = await any_queue.enqueue(id="a", run_at=LATER, on_conflict=ONLY, request_key="k")

    assert ("absent", True) == (again.verdict, again.repeated)


async def test_an_update_of_an_active_job_ends_with_its_run(any_queue: Queue) -> None:
    await any_queue.enqueue("data", id="a")
    async with claimed(any_queue) as claim:
        ticket = await any_queue.enqueue(id="a", run_at=LATER, on_conflict=ONLY)
        pending = await ticket.status()
        await claim.complete("done")

    assert ("blocked", "blocked", None, None) == (ticket.verdict, pending.state, pending.run_at, pending.data)
    assert "done" == await ticket.result(0)
    assert 0 == (await any_queue.counts()).waiting


async def test_a_task_is_updated_without_arguments(app: Dibs) -> None:
    task = app.task(queue="q", key="path")(handlers.thumbnail)
    await task.options(id="a").enqueue("p")
    update: Any = task.options(id="a", run_at=LATER, on_conflict=ONLY)
    ticket = await update.enqueue()
    await task.enqueue_many([update.bind()])
    same = await task.queue.enqueue(id="a", delay=60, on_conflict=Update(create=False, run_at="earlier"))
    status = await same.status()

    assert ["updated"] * 2 == [ticket.verdict, same.verdict]
    assert (["p"], "p") == (status.data["args"], status.key)
    assert status.run_at is not None
    assert status.run_at < LATER


async def test_a_follow_up_may_be_an_update(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="first")
    async with claimed(any_queue) as claim:
        await any_queue.enqueue("data", id="next")
        then = [any_queue.bind(id=id, run_at=LATER, on_conflict=ONLY) for id in ("next", "never")]
        await claim.complete(then=then)
    status = await any_queue.get("next")

    assert status is not None
    assert LATER == status.run_at
    assert await any_queue.get("never") is None
