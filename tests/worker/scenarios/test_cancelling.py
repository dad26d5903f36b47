"""Somebody asks a running job to stop: it ends as cancelled, and whoever waits for it is told."""

from __future__ import annotations

import asyncio

import pytest

from dibs.client.app import Dibs
from dibs.errors import JobCancelled
from tests.worker.fleet import everywhere, working
from tests.worker.workshop import Gate, current, outcome, put


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def cancelled(app: Dibs, queue: str, id: str) -> str:
    """Ask, wait for the result, and return what a waiter got."""
    ticket = app.queue(queue).ticket(id, (await current(app, queue, id)).revision)
    waiting = asyncio.create_task(ticket.result(wait=60))
    await app.queue(queue).cancel(id, running=True)
    with pytest.raises(JobCancelled):
        await waiting
    return (await outcome(app, queue, id)).kind


QUEUES = ("waits_for_cancel", "minds_cancel", "minds_cancel_alone", "alone")


@everywhere
async def test_a_running_job_ends_as_cancelled(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Async is cancelled; `def` looks at job.cancelled; alone in its process it is killed if it does not."""
    monkeypatch.setenv("CANCEL_GRACE", "0.2")
    for queue in QUEUES:
        await put(app, queue, queue)
    async with working(app, *QUEUES, heartbeat=0.1) as task:
        for queue in QUEUES:
            await gate.arrived(queue)
            if queue.startswith("minds"):
                await gate.let_go_unseen(queue)
        ends = await asyncio.gather(*(cancelled(app, queue, queue) for queue in QUEUES))
        report = await task

    assert ["cancelled"] * 4 == ends
    assert (4, 0) == (report.total("cancelled"), report.crashes)
