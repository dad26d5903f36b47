"""A flow whose evaluation an operator has cancelled: the maintenance of any worker brings it back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from dibs import BatchSummary
from dibs.cli.commands.move import move
from dibs.maintenance import flow_repair
from dibs.maintenance.flow_repair import repair_flows
from dibs.model.requests import Complete
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.protocol import Storage
from tests.background_worker import background_worker
from tests.flow.tasks import Tasks
from tests.flow.test_stored_flow import approve, status_when
from tests.storage_urls import new_url


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


# -- `dibs move` carries running flows and batches between real storages, and no node runs again -----


PAIRS = (("file", "redis"), ("redis", "cluster"), ("cluster", "file"))


class Interrupted(Exception):
    """The producer of a batch stops before it closes the batch."""


async def move_all(source: Tasks, target: Tasks) -> None:
    queues = [info.name for info in await source.app.storage.queues()]
    await move(source.app.storage, target.app.storage, queues, wait=True, advance=lambda _: None)
    left = await source.app.storage.counts(queues)
    assert 0 == sum(one.waiting + one.active for one in left.values())


async def enqueue_flow(tasks: Tasks) -> None:
    """Enqueue a flow with a nested flow. An approval holds back the rest of the nested flow."""
    flow = tasks.app.flow(id="f")
    parts = [flow.add(tasks.load.bind(tasks.mark, number)) for number in range(5)]
    asked = flow.add(tasks.approve.bind("may it?"), after=parts)
    nested = tasks.app.flow()
    nested.returns(nested.add(tasks.load.bind(tasks.mark, 100)))
    inner = flow.add(nested, after=[asked])
    flow.returns(flow.add(tasks.summarise.bind([*(part.output for part in parts), inner.output])))
    await flow.enqueue()


@pytest.mark.parametrize(("source_scheme", "target_scheme"), PAIRS)
async def test_a_running_flow_continues_after_a_move(
    source_scheme: str, target_scheme: str, request: pytest.FixtureRequest
) -> None:
    source = Tasks(new_url(source_scheme, request))
    target = Tasks(new_url(target_scheme, request), source.mark)
    async with source.app, target.app:
        async with background_worker(source.app, stop=True):
            await enqueue_flow(source)
            before = await status_when(source, "f", 5, "handed_off")
        await move_all(source, target)
        after = await target.app.get_flow("f").status()
        async with background_worker(target.app, stop=True):
            await approve(target, "f", 5)
            result = await (await target.app.get_flow("f").ticket()).result(wait=30)

    assert after is not None
    assert [(node.id, node.state) for node in before.nodes] == [(node.id, node.state) for node in after.nodes]
    assert 2 * sum(range(5)) + 200 == result
    assert [*range(5), 100] == sorted(source.ran())


async def add_members_and_stop(tasks: Tasks) -> None:
    """Add members to a batch, of which one is held back, and leave the batch open."""
    async with tasks.app.batch(id="b", on_finish=tasks.note.bind(f"{tasks.mark}!", "on_finish")) as batch:
        await batch.enqueue_many([tasks.load.bind(tasks.mark, n) for n in range(10)])
        await batch.enqueue_many([tasks.approve.bind("may it?")])
        async with asyncio.timeout(30):
            while (await tasks.approve.queue.counts()).handed_off < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while (await tasks.load.queue.counts()).completed < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        raise Interrupted


@pytest.mark.parametrize(("source_scheme", "target_scheme"), PAIRS)
async def test_a_running_batch_continues_after_a_move(
    source_scheme: str, target_scheme: str, request: pytest.FixtureRequest
) -> None:
    """Members ended before the move count, a held one ends after it, and others are added after it."""
    source = Tasks(new_url(source_scheme, request))
    target = Tasks(new_url(target_scheme, request), source.mark)
    async with source.app, target.app:
        async with background_worker(source.app, stop=True):
            with suppress(Interrupted):
                await add_members_and_stop(source)
        await move_all(source, target)
        async with background_worker(target.app, stop=True):
            moved = target.app.get_batch("b")
            assert 10 == await moved.enqueue_many(target.load.bind(target.mark, n) for n in range(10, 20))
            await moved.close()
            async for job in target.approve.queue.list("handed_off"):
                await target.approve.queue.finish(job.id, job.revision)
            summary = await (await moved.ticket()).result(wait=30)
            results = [one.result async for one in moved.results()]
            async with asyncio.timeout(30):
                while not target.ran(f"{source.mark}!"):  # noqa: ASYNC110 - a worker runs the callback
                    await asyncio.sleep(0.01)

    assert BatchSummary(members=21, completed=21) == summary
    assert 21 == len(results)
    assert list(range(20)) == sorted(source.ran())
    assert ["on_finish"] == target.ran(f"{source.mark}!")
