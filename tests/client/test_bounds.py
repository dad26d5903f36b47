"""A bound on the waiting jobs of a queue: what enqueues raise and return, and what is never stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dibs import Dibs, JobDropped, Queue, QueueFull, Refused, Update
from dibs.errors import DibsError
from dibs.model.requests import Settings
from tests.client.manual_claims import claimed


async def test_a_full_queue_refuses_a_new_job_and_takes_an_update(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1)
    await any_queue.enqueue(1, id="a")
    with pytest.raises(
        QueueFull, match=f"'{any_queue.name}' has as many waiting jobs as its max_waiting"
    ) as full:
        await any_queue.enqueue(2, id="b", request_key="k")
    updated = await any_queue.enqueue(3, id="a")

    (ticket,) = full.value.tickets
    assert (any_queue.name, 0) == (full.value.queue, full.value.accepted)
    assert ("b", "full", 0) == (ticket.id, ticket.verdict, ticket.revision)
    assert "updated" == updated.verdict
    async with claimed(any_queue):
        assert "queued" == (await any_queue.enqueue(2, id="b", request_key="k")).verdict


async def test_the_tickets_of_a_batch_say_which_jobs_a_full_queue_took(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1002)
    await any_queue.enqueue(0, id="known")
    items = [any_queue.bind(n, id=f"{n:04}") for n in range(1100)]
    with pytest.raises(QueueFull, match="did not take 99 of 1,101 jobs") as full:
        await any_queue.enqueue_many([*items, any_queue.bind(1, id="known")])

    verdicts = [ticket.verdict for ticket in full.value.tickets]
    assert ["queued"] * 1001 + ["full"] * 99 + ["updated"] == verdicts
    assert 1002 == full.value.accepted
    assert 1002 == (await any_queue.counts()).waiting


async def test_a_dropped_job_ends_a_wait_at_once(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1, when_full="drop_new")
    tickets = await any_queue.enqueue_many([1, 2])
    dropped = tickets[1]

    assert ["queued", "dropped"] == [ticket.verdict for ticket in tickets]
    assert ("dropped", "dropped") == (dropped.verdict, (await dropped.status()).state)
    with pytest.raises(JobDropped, match=f"{any_queue.name}/{dropped.id}: .*was not enqueued"):
        await dropped.result(wait=None)
    with pytest.raises(JobDropped):
        await anext(dropped.progress())
    with pytest.raises(JobDropped):
        await any_queue.enqueue_and_wait(3, wait=None)
    assert "not_found" == await dropped.cancel()
    assert "absent" == (await any_queue.enqueue(id="none", on_conflict=Update(create=False))).verdict


async def test_concurrent_enqueues_fill_a_queue_exactly(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=7)
    calls = [any_queue.enqueue(n) for n in range(40)]
    found = await asyncio.gather(*calls, return_exceptions=True)

    assert 33 == sum(isinstance(one, QueueFull) for one in found)
    assert 7 == (await any_queue.counts()).waiting


async def test_a_blocking_enqueue_of_a_full_queue(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1)

    def enqueue() -> tuple[str | None, int]:
        ticket = any_queue.sync.enqueue(1)
        with pytest.raises(QueueFull):
            any_queue.sync.enqueue(2)
        with pytest.raises(QueueFull) as full:
            any_queue.sync.enqueue_many([3, 4])
        return ticket.verdict, full.value.accepted

    assert ("queued", 0) == await asyncio.to_thread(enqueue)


async def job() -> None: ...


async def test_a_task_declares_its_bound(any_app: Dibs) -> None:
    task = any_app.task(queue="bounded", max_waiting=2, when_full="drop_new")(job)
    await any_app.work(until="empty", queues=["bounded"])
    settings = {info.name: info.settings for info in await any_app.storage.queues()}["bounded"]

    assert Settings(max_waiting=2, when_full="drop_new") == settings
    assert ["queued", "queued", "dropped"] == [(await task.enqueue()).verdict for _ in range(3)]


async def test_a_schedule_of_a_full_queue_is_refused(any_app: Dibs) -> None:
    task = any_app.task(queue="bounded")(job)
    await task.queue.configure(max_waiting=1, when_full="drop_new")
    await task.enqueue()
    with pytest.raises(QueueFull, match="its schedule was not stored"):
        await task.schedule("tenant-7", every="1h")
    await task.queue.configure(max_waiting=2)
    await task.schedule("tenant-7", every="1h")
    await task.schedule("tenant-7", every="2h")

    assert 2 == (await task.queue.counts()).waiting


async def test_a_worker_warns_of_a_tick_that_a_full_queue_does_not_take(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    task = app.task(queue="bounded", every="1h", max_waiting=1)(job)
    await task.queue.configure(paused=True, max_waiting=1)
    await task.enqueue()
    with caplog.at_level(logging.WARNING, "dibs.worker"):
        await app.work(until="idle", queues=["bounded"])

    assert "bounded: enqueueing the next tick failed, trying again in a minute" in caplog.text
    assert "max_waiting" in caplog.text


@pytest.mark.parametrize("value", [0, 1_000_000_001, 1.5, "1", True])
async def test_a_bad_bound_is_refused(any_queue: Queue, value: object) -> None:
    with pytest.raises(Refused, match="max_waiting") as refused:
        await any_queue.configure(max_waiting=value)  # type: ignore[arg-type]

    assert "max_waiting" == refused.value.field


def test_queue_full_is_an_error_of_dibs() -> None:
    full = QueueFull(queue="q")

    assert isinstance(full, DibsError)
    assert ("q", 0) == (full.queue, full.accepted)
    assert "max_waiting" in str(full)
