"""Somebody asks a running job to stop: it ends as cancelled, and whoever waits for it is told."""

from __future__ import annotations

import asyncio

import pytest

from dibs.client.app import Dibs
from dibs.errors import JobCancelled
from tests.worker.fleet import working
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


@pytest.mark.parametrize("queue", ["waits_for_cancel", "minds_cancel", "minds_cancel_alone", "alone"])
async def test_a_running_job_ends_as_cancelled(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """Async is cancelled; `def` looks at job.cancelled; alone in its process it is killed if it does not."""
    monkeypatch.setenv("CANCEL_GRACE", "0.2")
    await put(app, queue, "a")
    async with working(app, queue, heartbeat=0.1) as task:
        await gate.arrived("a")
        if queue.startswith("minds"):
            await gate.let_go_unseen("a")
        assert "cancelled" == await cancelled(app, queue, "a")
        report = await task

    assert (1, 0) == (report.total("cancelled"), report.crashes)
