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
