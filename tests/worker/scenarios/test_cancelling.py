"""The cancellation of a running job: it ends as cancelled, and its waiter gets JobCancelled."""

from __future__ import annotations

import asyncio

import pytest

from dibs.app import Dibs
from dibs.errors import JobCancelled
from tests.worker.gate import Gate
from tests.worker.jobs import current, outcome, put
from tests.worker.supervisors import on_all_storages, working


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def cancel(app: Dibs, queue: str, id: str) -> str:
    """Cancel a running job, check that a waiter gets JobCancelled, and return the kind of its outcome."""
    ticket = app.queue(queue).ticket(id, (await current(app, queue, id)).revision)
    waiting = asyncio.create_task(ticket.result(wait=60))
    await app.queue(queue).cancel(id, running=True)
    with pytest.raises(JobCancelled):
        await waiting
    return (await outcome(app, queue, id)).kind


QUEUES = ("waits_for_cancel", "minds_cancel", "minds_cancel_alone", "alone")


@on_all_storages
async def test_a_running_job_ends_as_cancelled(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An async handler is cancelled, a `def` handler reads job.cancelled, an isolated process is killed."""
    monkeypatch.setenv("CANCEL_GRACE", "0.2")
    for queue in QUEUES:
        await put(app, queue, queue)
    async with working(app, *QUEUES, heartbeat=0.1) as task:
        for queue in QUEUES:
            await gate.arrived(queue)
            if queue.startswith("minds"):
                await gate.release_without_waiting(queue)
        ends = await asyncio.gather(*(cancel(app, queue, queue) for queue in QUEUES))
        report = await task

    assert ["cancelled"] * 4 == ends
    assert (4, 0) == (report.total("cancelled"), report.crashes)
