"""Flows and batches on a Redis Cluster, where an end and the wake-up of its flow are two requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dibs import BatchSummary
from dibs.model.requests import Complete
from tests.background_worker import background_worker
from tests.flow.tasks import FAILING, Tasks
from tests.flow.test_stored_flow import status_when
from tests.storage_urls import new_url


@pytest.fixture
async def working(request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    """Tasks on a cluster, with a worker in this process."""
    tasks = Tasks(new_url("cluster", request))
    async with tasks.app, background_worker(tasks.app):
        yield tasks


@pytest.mark.long
async def test_a_flow_with_a_diamond_and_a_nested_flow_completes(working: Tasks) -> None:
    flow = working.app.flow()
    first = flow.add(working.load.bind(working.mark, 1))
    sides = [flow.add(working.add_up.bind(first.output, number)) for number in range(20)]
    nested = working.app.flow()
    nested.returns(nested.add(working.load.bind(working.mark, 50)))
    total = flow.add(working.summarise.bind([*(one.output for one in sides), flow.add(nested).output]))
    flow.returns(total)
    ticket = await flow.enqueue()

    assert 20 * 2 + sum(range(20)) + 100 == await ticket.result(wait=30)
    assert [1, 50] == sorted(working.ran())


async def test_an_end_without_a_wake_up_is_found_by_the_timer(working: Tasks) -> None:
    """A crash between the end of a node and the enqueue of the wake-up leaves this state."""
    flow = working.app.flow(id="f")
    asked = flow.add(working.approve.bind("may it?"))
    flow.add(working.note.bind(working.mark, "ran"), after=[asked])
    ticket = await flow.enqueue()
    status = await status_when(working, "f", 0, "handed_off")
    job = await working.approve.queue.get(status.nodes[0].id)
    assert job is not None
    await working.app.storage.finish(job.queue, job.id, Complete(result=b"null"), job.revision)
    await ticket.result(wait=30)

    assert ["ran"] == working.ran()


async def test_a_batch_counts_its_members_and_runs_each_callback_once(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 7")
    callbacks = {
        name: working.note.bind(f"{working.mark}!", name)
        for name in ("on_success", "on_finish", "on_first_failure")
    }
    async with working.app.batch(id="b", **callbacks) as batch:  # type: ignore[arg-type]
        for begin in (0, 20):
            await batch.enqueue_many(working.load.bind(working.mark, n) for n in range(begin, begin + 20))
    summary = await batch.ticket.result(wait=30)
    async with asyncio.timeout(30):
        while len(working.ran(f"{working.mark}!")) < 2:  # noqa: ASYNC110 - the callbacks run in a worker
            await asyncio.sleep(0.01)

    assert BatchSummary(members=40, completed=39, failed=1) == summary
    assert list(range(40)) == sorted(working.ran())
    assert ["on_finish", "on_first_failure"] == sorted(working.ran(f"{working.mark}!"))
