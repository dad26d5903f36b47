"""Batches on every storage: members, callbacks, failures, members from handlers, results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import pytest

from dibs import (
    BatchClosed,
    BatchSummary,
    Bound,
    ConfigurationError,
    Dibs,
    JobCancelled,
    NotRunning,
    Refused,
)
from dibs.flow.batch import evaluation
from dibs.flow.batch.segments import PRODUCERS
from dibs.model.requests import JobPatch
from dibs.model.wakeup import FLOWS
from tests.flow.batch_tasks import GATES, BatchTasks
from tests.flow.tasks import FAILING


@pytest.fixture
async def tasks(any_url: str) -> AsyncIterator[BatchTasks]:
    """Tasks for batches on a new storage of each kind."""
    tasks = BatchTasks(any_url)
    async with tasks.app:
        yield tasks


async def until_ran(tasks: BatchTasks, *texts: object) -> None:
    """Wait until calls with these texts have started."""
    async with asyncio.timeout(30):
        while not set(texts) <= set(tasks.ran()):  # noqa: ASYNC110 - the calls run in a worker
            await asyncio.sleep(0.01)


async def until_counted(tasks: BatchTasks, state: str, number: int) -> None:
    """Wait until this number of calls of `load` is in a state."""
    async with asyncio.timeout(30):
        while getattr(await tasks.load.queue.counts(), state) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_handed_off(tasks: BatchTasks, id: str) -> None:
    """Wait until the worker has handed a batch off."""
    async with asyncio.timeout(30):
        while (job := await tasks.app.queue(FLOWS).get(id)) is None or job.state != "handed_off":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Callbacks(TypedDict):
    """The callbacks of a batch."""

    on_success: Bound[str]
    on_finish: Bound[str]
    on_first_failure: Bound[str]


def callbacks(tasks: BatchTasks) -> Callbacks:
    """Return callbacks that note their names."""
    return Callbacks(
        on_success=tasks.note.bind(tasks.mark, "on_success"),
        on_finish=tasks.note.bind(tasks.mark, "on_finish"),
        on_first_failure=tasks.note.bind(tasks.mark, "on_first_failure"),
    )


async def test_all_members_run_and_the_callbacks_fire_once(working: BatchTasks) -> None:
    async with working.app.batch(**callbacks(working)) as batch:
        added = await batch.enqueue_many(working.load.bind(working.mark, number) for number in range(100))
    summary = await batch.ticket.result(wait=30)
    await until_ran(working, "on_finish", "on_success")

    assert 100 == added
    assert BatchSummary(members=100, completed=100) == summary
    assert {*range(100), "on_success", "on_finish"} == set(working.ran())
    assert 102 == len(working.ran())


async def test_a_failure_fires_on_first_failure_before_the_end(working: BatchTasks) -> None:
    FAILING.update(f"{working.mark} {number}" for number in (3, 4))
    async with working.app.batch(**callbacks(working)) as batch:
        await batch.enqueue_many([working.load.bind(working.mark, number) for number in range(10)])
        await batch.enqueue_many([working.hold.bind(working.mark)])
        await until_ran(working, "on_first_failure")
        assert "on_finish" not in working.ran()
        GATES[working.mark].set()
    summary = await batch.ticket.result(wait=30)
    await until_ran(working, "on_finish")

    assert BatchSummary(members=11, completed=9, failed=2) == summary
    assert sorted(map(str, [*range(10), "held", "on_finish", "on_first_failure"])) == sorted(
        map(str, working.ran())
    )


async def test_results_come_in_the_order_of_the_enqueue(working: BatchTasks) -> None:
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


async def test_members_add_members_also_after_the_close(working: BatchTasks) -> None:
    async with working.app.batch(**callbacks(working)) as batch:
        await batch.enqueue_many([working.grow.bind(working.mark, 4)])
        await batch.enqueue_many([working.grow_blocking.bind(working.mark, 2)])
    summary = await batch.ticket.result(wait=60)
    await until_ran(working, "on_finish", "on_success")

    assert BatchSummary(members=31 + 7, completed=31 + 7) == summary
    assert 38 + 2 == len(working.ran())


async def test_a_late_adder_is_refused(working: BatchTasks) -> None:
    async with working.app.batch(id=f"b-{working.mark}", **callbacks(working)) as batch:
        await batch.enqueue_many([working.hold.bind(working.mark)])
        intruder = await working.intrude.enqueue(working.mark, batch.id)
        assert "added" == await intruder.result(wait=30)
    ticket = await working.intrude.enqueue(working.mark, batch.id)
    assert "is closed" in await ticket.result(wait=30)
    GATES[working.mark].set()
    summary = await batch.ticket.result(wait=30)
    with pytest.raises(BatchClosed, match="has ended"):
        await working.app.get_batch(batch.id).enqueue_many([working.load.bind(working.mark, 1)])
    with pytest.raises(BatchClosed):
        await batch.enqueue_many([working.load.bind(working.mark, 1)])
    await until_ran(working, "on_finish")

    assert BatchSummary(members=2, completed=2) == summary
    assert 1 not in working.ran()


async def test_a_known_id_is_joined_and_not_made_again(working: BatchTasks) -> None:
    async with working.app.batch(id=f"b-{working.mark}", **callbacks(working)) as first:
        await first.enqueue_many([working.load.bind(working.mark, 1)])
        async with working.app.batch(id=first.id) as second:
            await second.enqueue_many([working.load.bind(working.mark, 2)])
    summary = await first.ticket.result(wait=30)
    await until_ran(working, "on_finish", "on_success")

    assert ("queued", "duplicate") == (first.ticket.verdict, second.ticket.verdict)
    assert BatchSummary(members=2, completed=2) == summary == await second.ticket.result(wait=30)
    assert 4 == len(working.ran())


async def test_an_exception_in_the_block_leaves_the_batch_open(working: BatchTasks) -> None:
    with pytest.raises(ZeroDivisionError):
        async with working.app.batch(id=f"b-{working.mark}", **callbacks(working)) as batch:
            await batch.enqueue_many(working.load.bind(working.mark, 1 // number) for number in (1, 0))
    async with working.app.batch(id=batch.id) as again:
        await again.enqueue_many([working.load.bind(working.mark, 2)])

    assert BatchSummary(members=1, completed=1) == await batch.ticket.result(wait=30)


async def test_a_batch_that_nobody_closes_is_closed_after_a_time(working: BatchTasks) -> None:
    batch = working.app.batch(open_for=1, **callbacks(working))
    await batch.__aenter__()
    await batch.enqueue_many([working.load.bind(working.mark, 1)])
    summary = await batch.ticket.result(wait=30)
    await until_ran(working, "on_finish")

    assert BatchSummary(members=1, completed=1, producer_lost=True) == summary
    assert [1, "on_finish"] == working.ran()


async def test_a_segment_that_never_came_counts_as_missing(
    working: BatchTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "GRACE", 300)
    async with working.app.batch(**callbacks(working)) as batch:
        await batch.enqueue_many([working.load.bind(working.mark, 1)])
        opened = await batch._client.storage_handle.ensure_open()
        producer = await PRODUCERS.get(opened, batch.id)
        await producer._reserve(7, member=False)  # the producer is killed before the enqueue
    summary = await batch.ticket.result(wait=30)
    await until_ran(working, "on_finish", "on_first_failure")

    assert BatchSummary(members=8, completed=1, missing=7) == summary
    assert 3 == len(working.ran())
    assert [2] == [one.result async for one in batch.results()]


async def test_a_slow_producer_enqueues_no_member_after_its_segment_counts_as_missing(
    working: BatchTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "GRACE", 300)
    async with working.app.batch() as batch:
        opened = await batch._client.storage_handle.ensure_open()
        producer = await PRODUCERS.get(opened, batch.id)
        reserved = await producer._reserve(1, member=False)

        async def reserve(*_: object, **__: object) -> int:
            await batch.ticket.result(wait=30)  # the enqueue comes after the end of the batch
            return reserved

        monkeypatch.setattr(type(producer), "_reserve", reserve)
        adding = asyncio.create_task(batch.enqueue_many([working.load.bind(working.mark, 1)]))
        await asyncio.sleep(0)
    with pytest.raises(BatchClosed):
        await adding

    assert [] == working.ran()
    assert 1 == (await batch.ticket.result()).missing


async def test_a_cancel_ends_the_members_and_runs_on_finish(working: BatchTasks) -> None:
    async with working.app.batch(id=f"b-{working.mark}", **callbacks(working)) as batch:
        await batch.enqueue_many([working.load.options(delay=3600).bind(working.mark, n) for n in range(20)])
        await until_counted(working, "scheduled", 20)
    assert "requested" == await batch.cancel()
    with pytest.raises(JobCancelled):
        await batch.ticket.result(wait=30)
    await until_ran(working, "on_finish", "on_first_failure")

    assert 2 == len(working.ran())
    assert 20 == (await working.load.queue.counts()).cancelled
    assert "cancelled" == await batch.cancel()
    assert {"cancelled"} == {one.state async for one in batch.results()}


async def test_a_plain_cancel_of_the_job_cancels_the_members(working: BatchTasks) -> None:
    async with working.app.batch(id=f"b-{working.mark}", **callbacks(working)) as batch:
        await batch.enqueue_many([working.load.options(delay=3600).bind(working.mark, n) for n in range(20)])
        await until_counted(working, "scheduled", 20)
        await until_handed_off(working, batch.id)
        assert "cancelled" == await working.app.queue(FLOWS).cancel(batch.id, running=True)
    await until_counted(working, "cancelled", 20)

    assert [] == working.ran()


async def test_a_callback_has_the_summary(working: BatchTasks) -> None:
    async with working.app.batch(on_finish=working.read_summary.bind(working.mark)) as batch:
        await batch.enqueue_many([working.add_up.bind(number) for number in range(3)])
    await batch.ticket.result(wait=30)
    async with asyncio.timeout(30):
        while not working.ran():  # noqa: ASYNC110 - the callback runs in a worker
            await asyncio.sleep(0.01)

    ((id, summary),) = working.ran()
    assert (batch.id, 3, 3) == (id, summary["members"], summary["completed"])


@pytest.mark.long
async def test_progress_shows_the_members_by_state(working: BatchTasks) -> None:
    async with working.app.batch() as batch:
        await batch.enqueue_many([working.add_up.bind(number) for number in range(5)])
        await batch.enqueue_many([working.hold.bind(working.mark)])
        async with asyncio.timeout(30):
            async for summary in batch.progress():
                if summary.completed == 5:
                    break
        GATES[working.mark].set()

    assert BatchSummary(members=6, completed=5, open=1) == summary


async def test_an_empty_batch_succeeds(working: BatchTasks) -> None:
    async with working.app.batch(**callbacks(working)) as batch:
        pass

    assert BatchSummary() == await batch.ticket.result(wait=30)
    await until_ran(working, "on_success", "on_finish")


async def test_members_come_from_async_iterables(working: BatchTasks) -> None:
    async def numbers() -> AsyncIterator[Bound[int]]:
        for number in range(2500):
            yield working.add_up.bind(number)

    async with working.app.batch() as batch:
        assert 2500 == await batch.enqueue_many(numbers())
    results = [one.result async for one in batch.results()]

    assert list(range(2500)) == results


async def test_a_batch_has_a_blocking_form(working: BatchTasks) -> None:
    def run() -> tuple[BatchSummary, list[object]]:
        with working.app.sync.batch(**callbacks(working)) as batch:
            batch.enqueue_many(working.load.bind(working.mark, number) for number in range(3))
            working.app.sync.get_batch(batch.id).enqueue_many([working.load.bind(working.mark, 3)])
        return batch.ticket.result(wait=30), [one.result for one in batch.results()]

    assert (BatchSummary(members=4, completed=4), [0, 2, 4, 6]) == await asyncio.to_thread(run)


async def test_a_bad_member_is_refused_by_its_index(tasks: BatchTasks) -> None:
    async with tasks.app.batch() as batch:
        with pytest.raises(Refused, match="not bound") as refused:
            await batch.enqueue_many([tasks.add_up.bind(1), "add_up"])  # type: ignore[list-item]
    assert 1 == refused.value.index
    assert [f"0 jobs were added to the batch {batch.id!r} before this error"] == refused.value.__notes__


BAD_SETTINGS = [
    ({"id": "x" * 441}, "id"),
    ({"id": ""}, "id"),
    ({"keep": 60}, "keep"),
    ({"open_for": 0.5}, "open_for"),
    ({"open_for": "soon"}, "open_for"),
    ({"attributes": {"dibs.flow": "f"}}, "attributes['dibs.flow']"),
    ({"attributes": [1]}, "attributes"),
    ({"attributes": {"a": "x" * 20_000}}, "attributes"),
    ({"on_finish": "report"}, "on_finish"),
]


@pytest.mark.parametrize(("settings", "field"), BAD_SETTINGS, ids=lambda one: str(one)[:30])
def test_a_bad_setting_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        Dibs("memory:", flows=True).batch(**settings)
    assert field == refused.value.field


def test_a_callback_with_an_id_or_a_request_key_is_refused() -> None:
    tasks = BatchTasks("memory:")
    for options in ({"id": "x"}, {"request_key": "x"}):
        callback = tasks.note.options(**options).bind(tasks.mark, "x")  # type: ignore[arg-type]
        with pytest.raises(Refused) as refused:
            tasks.app.batch(on_success=callback)
        assert "on_success" == refused.value.field


@pytest.mark.parametrize("jobs", ["text", 7, None])
async def test_members_come_from_an_iterable_only(jobs: Any) -> None:
    tasks = BatchTasks("memory:")
    async with tasks.app, tasks.app.batch() as batch:
        bad: Any
        for bad in (jobs, tasks.add_up.bind(1)):
            with pytest.raises(Refused) as refused:
                await batch.enqueue_many(bad)
            assert "jobs" == refused.value.field


async def test_the_id_of_a_flow_is_no_id_of_a_batch(tasks: BatchTasks) -> None:
    flow = tasks.app.flow(id=f"f-{tasks.mark}")
    flow.add(tasks.add_up.bind(1))
    await flow.enqueue()
    with pytest.raises(Refused, match="that of a flow"):
        await tasks.app.batch(id=flow.id).__aenter__()
    with pytest.raises(BatchClosed):
        await tasks.app.get_batch(flow.id).enqueue_many([tasks.add_up.bind(1)])


async def test_a_batch_is_no_batch_before_the_block_and_outside_of_a_handler() -> None:
    app = Dibs("memory:", flows=True)
    with pytest.raises(NotRunning):
        _ = app.batch().ticket
    with pytest.raises(NotRunning):
        app.get_batch()
    with pytest.raises(ConfigurationError, match="flows=True"):
        Dibs("memory:").batch()


async def test_a_member_that_does_not_fit_is_refused_by_name(tasks: BatchTasks) -> None:
    async with tasks.app.batch() as batch:
        with pytest.raises(Refused, match="too many bytes for a batch") as refused:
            await batch.enqueue_many([tasks.note.bind(tasks.mark, "x" * (1024 * 1024 - 60))])
    assert "jobs" == refused.value.field


async def test_too_many_producers_are_refused_and_the_batch_closes(tasks: BatchTasks) -> None:
    async with tasks.app.batch() as batch:
        await batch.enqueue_many([tasks.add_up.bind(1)])
        opened = await batch._client.storage_handle.ensure_open()
        names = {f"dibs.p.{number:010}": b"[1,1]" for number in range(1500)}
        await opened.bounded.amend(FLOWS, batch.id, JobPatch(attributes=names))
        assert 1 == await batch.enqueue_many([tasks.add_up.bind(1)])
        PRODUCERS._by_storage.clear()
        with pytest.raises(Refused, match="1,501 producers") as refused:
            await batch.enqueue_many([tasks.add_up.bind(1)])
        names = {f"dibs.p.{number:010}": b"[1000000,1000000000]" for number in range(1500)}
        await opened.bounded.amend(FLOWS, batch.id, JobPatch(attributes=names))

    assert "jobs" == refused.value.field
    assert await batch.close()
    assert "requested" == await batch.cancel()
