"""Batches on every storage: members, callbacks, failures, members from handlers, results."""

from __future__ import annotations

import asyncio

from dibs import BatchSummary
from tests.flow.tasks import FAILING, Tasks


async def until_ran(tasks: Tasks, text: object, mark: str = "") -> None:
    """Wait until a call with this mark and text has started."""
    async with asyncio.timeout(30):
        while text not in tasks.ran(mark):  # noqa: ASYNC110 - the calls run in a worker
            await asyncio.sleep(0.01)


async def test_all_members_run_and_the_callbacks_fire_once(working: Tasks) -> None:
    on_success = working.note.bind(working.mark, "success")
    on_finish = working.note.bind(working.mark, "finish")
    never = working.note.bind(working.mark, "first failure")
    batch = working.app.batch(on_success=on_success, on_finish=on_finish, on_first_failure=never)
    async with batch:
        added = await batch.enqueue_many(working.load.bind(working.mark, number) for number in range(100))
    summary = await batch.ticket.result(wait=30)
    await until_ran(working, "finish")
    await until_ran(working, "success")

    assert 100 == added
    assert BatchSummary(members=100, completed=100) == summary
    assert {*range(100), "success", "finish"} == set(working.ran())
    assert 102 == len(working.ran())


async def test_results_come_in_the_order_of_the_enqueue(working: Tasks) -> None:
    FAILING.add(f"{working.mark} 7")
    async with working.app.batch() as batch:
        await batch.enqueue_many([working.load.bind(working.mark, number) for number in range(10)])
        await batch.enqueue_many([working.add_up.bind(number, 1) for number in range(10, 15)])
    results = [result async for result in batch.results()]

    doubled = [2 * n if n != 7 else None for n in range(10)]
    assert [*doubled, *range(11, 16)] == [one.result for one in results]
    assert "failed" == results[7].state
    assert results[7].error is not None
    assert "no 7" == results[7].error.message
