"""`dibs move` carries running flows and batches between real storages, and no node runs again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from dibs import BatchSummary
from dibs.cli.commands.move import move
from tests.background_worker import background_worker
from tests.flow.tasks import Tasks
from tests.flow.test_stored_flow import approve, status_when
from tests.storage_urls import new_url

PAIRS = (("file", "redis"), ("redis", "cluster"), ("cluster", "file"))


class Interrupted(Exception):
    """The producer of a batch stops before it closes the batch."""


async def move_all(source: Tasks, target: Tasks) -> None:
    queues = [info.name for info in await source.app.storage.queues()]
    await move(source.app.storage, target.app.storage, queues, wait=True, progress=lambda *_: None)
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
