"""Worker processes are killed at random moments: each batch ends once, and each callback is enqueued once."""

from __future__ import annotations

import asyncio
import random

import pytest

from dibs import Batch, BatchSummary, Dibs
from dibs.model.wakeup import FLOWS
from dibs.worker import run
from tests.flow.kill_app import add_up, double, fail
from tests.flow.test_kills import TIMEOUT, Killer, app, count_ends

__all__ = ["app"]
BATCHES = 4
MEMBERS = 20


async def add_batch(opened: Dibs, number: int) -> Batch:
    """Enqueue a batch; each second one has a member that fails."""
    callbacks = {name: add_up.bind([number]) for name in ("on_success", "on_finish", "on_first_failure")}
    async with opened.batch(id=f"batch-{number}", **callbacks) as batch:  # type: ignore[arg-type]
        await batch.enqueue_many(double.bind(one) for one in range(MEMBERS))
        await batch.enqueue_many([fail.bind("planned") if number % 2 else double.bind(MEMBERS)])
    return batch


@pytest.mark.long
@pytest.mark.parametrize("app", ["file", "redis", "postgresql"], indirect=True)
async def test_each_callback_is_enqueued_once_under_kills(app: Dibs) -> None:
    killer = Killer(6, random.Random(1))
    working = asyncio.create_task(run(app, processes=2, progress=killer.on_progress))
    killing = asyncio.create_task(killer.kill())
    try:
        batches = [await add_batch(app, number) for number in range(BATCHES // 2)]
        await asyncio.wait_for(killer.has_killed.wait(), TIMEOUT)
        batches += [await add_batch(app, number) for number in range(BATCHES // 2, BATCHES)]
        summaries = [await batch.ticket.result(wait=TIMEOUT) for batch in batches]
        async with asyncio.timeout(TIMEOUT):
            while (await add_up.queue.counts()).completed < BATCHES * 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        killing.cancel()
        working.cancel()
        await asyncio.gather(killing, working, return_exceptions=True)
    flow_ends, callback_ends = await count_ends(app, FLOWS), await count_ends(app, add_up.queue.name)

    for number, summary in enumerate(summaries):
        failed = number % 2
        completed = MEMBERS + 1 - failed
        assert BatchSummary(members=MEMBERS + 1, completed=completed, failed=failed) == summary
        assert 1 == flow_ends[f"batch-{number}"]
    names = sorted((id.split("/")[0], id.rpartition("/")[2]) for id in callback_ends)
    assert names == sorted(
        (f"batch-{number}", name)
        for number in range(BATCHES)
        for name in ("on_finish", "on_first_failure" if number % 2 else "on_success")
    )
    assert {1} == set(callback_ends.values())
