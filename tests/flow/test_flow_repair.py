"""A flow whose evaluation an operator has cancelled: the maintenance of any worker brings it back."""

from __future__ import annotations

import asyncio

import pytest

from dibs.maintenance import flow_repair
from dibs.maintenance.flow_repair import repair_flows
from dibs.model.requests import Complete
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.protocol import Storage
from tests.background_worker import background_worker
from tests.flow.tasks import Tasks
from tests.flow.test_stored_flow import status_when


async def lose_last_wake_up(tasks: Tasks, id: str) -> None:
    """End the last node without a wake-up, and cancel the evaluation of its flow, as a program might."""
    status = await status_when(tasks, id, 0, "handed_off")
    job = await tasks.approve.queue.get(status.nodes[0].id)
    assert job is not None
    storage = tasks.app.storage
    async with asyncio.timeout(10):
        while (await storage.cancel(EVALUATIONS, [id]))[0] != "cancelled":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "done" == await storage.finish(job.queue, job.id, Complete(result=b"null"), job.revision)


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_repair, "CHECK_EVERY", 0.05)


@pytest.mark.usefixtures("frequent")
async def test_a_worker_brings_a_cancelled_evaluation_back(working: Tasks) -> None:
    flow = working.app.flow(id=f"f-{working.mark}")
    flow.add(working.approve.bind("may it?"))
    ticket = await flow.enqueue()
    await lose_last_wake_up(working, flow.id)
    await ticket.result(wait=30)

    status = await working.app.get_flow(flow.id).status()
    assert status is not None
    assert "completed" == status.state


@pytest.mark.usefixtures("frequent")
async def test_a_worker_brings_the_evaluation_of_a_batch_back(working: Tasks) -> None:
    async with working.app.batch(id=f"b-{working.mark}") as batch:
        await batch.enqueue_many([working.approve.bind("may it?")])
    storage = working.app.storage
    async with asyncio.timeout(30):
        while (await working.approve.queue.counts()).handed_off != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        page = await storage.list(FLOWS, "handed_off", limit=1000)
        mine = [id for id, _ in page.items if batch.id in id]
        assert len(mine) == 2  # the batch and its segment
        for id in mine:
            await storage.cancel(EVALUATIONS, [id], running=True)
        async for job in working.approve.queue.list("handed_off"):
            await storage.finish(job.queue, job.id, Complete(result=b"null"), job.revision)
    summary = await batch.ticket.result(wait=30)

    assert 1 == summary.completed


async def test_only_handed_off_flows_without_an_evaluation_get_one(tasks: Tasks) -> None:
    storage: Storage = tasks.app.storage
    ids = [f"{tasks.mark}-{number}" for number in range(3)]
    for id in ids:
        flow = tasks.app.flow(id=id)
        flow.add(tasks.approve.bind("may it?"))
        await flow.enqueue()
    async with background_worker(tasks.app, stop=True):
        for id in ids:
            await status_when(tasks, id, 0, "handed_off")
    waiting = tasks.app.flow(id=f"{tasks.mark}-waiting")
    waiting.add(tasks.approve.bind("may it?"))
    await waiting.enqueue()
    await storage.cancel(EVALUATIONS, ids[1:])
    found = await repair_flows(storage)
    slots = await storage.get(EVALUATIONS, [*ids, waiting.id])

    assert 2 == found
    assert 0 == await repair_flows(storage)
    assert [True, True, True, False] == [slot.current is not None for slot in slots]
