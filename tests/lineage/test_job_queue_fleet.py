"""@platformatic/job-queue: workers, events, hooks, the reaper, its storages, and how everything stops."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dibs import (
    BadHandler,
    ConfigurationError,
    Dibs,
    Immediate,
    JobFailed,
    Queue,
    Refused,
)
from dibs.client.calls.handler import Ending
from dibs.model.requests import Complete, RetryLater
from dibs.worker import run
from tests.lineage import actors
from tests.lineage.actors import play, told, work, working
from tests.lineage.clerk import Clerk
from tests.worker.faulty_storage import faulty_storage

# -- the worker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(100, 1), (25, 4), (1, 100)])
async def test_so_many_run_at_once(
    app: Dibs, queue: Queue, stage: actors.Stage, size: int, most: int
) -> None:
    """A process has 100 units: one of size 100 at a time, four of 25, a hundred of 1."""
    play(queue, size=size)
    await queue.enqueue_many([{"hold": True}] * (most + 5))
    async with working(app):
        for _ in range(most):
            await stage.arrived()
        assert most == stage.now
        stage.go.set()
        await told(queue, "completed", most + 5)

    assert most == stage.most


async def test_attempts_count_from_one(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """And n retries are n + 1 runs, so 0 is a single run."""
    play(queue, max_retries=0)
    await queue.enqueue({"fail": 1}, id="a")
    await queue.enqueue({"fail": 2}, id="b", max_retries=2)
    await work(app)

    assert ([1], [1, 2, 3]) == (
        [job.attempt for job in stage.jobs if job.id == "a"],
        [job.attempt for job in stage.jobs if job.id == "b"],
    )


async def test_a_retried_and_a_reaped_job_have_the_same_place_everywhere(clerk: Clerk) -> None:
    """At the back of its equals: a, b, a on every storage."""
    for how in ("retry", "reap"):
        await clerk.put("a")
        run_ = await clerk.take(await clerk.lease(10))
        await clerk.put("b")
        if how == "retry":
            await clerk.settle(run_, RetryLater(delay=0))
        else:
            clerk.now += 10
            await clerk.reap()
        await clerk.lease()
        jobs = await clerk.claim()
        assert ["b", "a"] == [job.id for job in jobs]
        for job in jobs:
            await clerk.settle(job, Complete())


async def test_a_run_over_its_time_is_stopped_not_only_told(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Its handler is cancelled, and job.deadline tells it beforehand."""
    play(queue, timeout=0.05, max_timeouts=0)
    await queue.enqueue({"hold": True}, id="a")
    await work(app)

    assert ["a stopped"] == stage.notes
    assert stage.jobs[0].deadline is not None


async def test_a_result_that_cannot_be_stored_fails_the_job_at_once(app: Dibs, queue: Queue) -> None:
    """It is not run again for that; the error says what it returned."""
    play(queue, returns_a_set)
    ticket = await queue.enqueue(1, id="a")
    await work(app)

    with pytest.raises(JobFailed, match="ResultNotSerializable"):
        await ticket.result(0)
    assert 1 == (await ticket.status()).attempts


async def returns_a_set(data: Any) -> Any:
    return {object()}


async def test_an_end_that_could_not_be_told_is_told_again(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """A storage that fails while a result is kept is no failure of the handler: it does not run again."""
    play(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage, working(app):
        await stage.arrived()
        storage.fail("settle_and_claim", OSError("away"))
        storage.fail("settle", OSError("away"))
        stage.go.set()
        await told(queue, "completed")

    assert ["a"] == stage.ran


async def test_jobs_may_be_enqueued_before_anybody_works(storage_url: str, stage: actors.Stage) -> None:
    """By whoever opens the place at first use; a worker that is idle for long still gets what comes."""
    app = Dibs(storage_url)
    queue = app.queue("q")
    play(queue)
    await queue.enqueue(1, id="before")
    try:
        async with faulty_storage(app) as storage, working(app, lease=0.4, heartbeat=0.04):
            await told(queue, "completed")
            while storage.calls.count("renew") < 12:
                await storage.wait(["q"], since=None, timeout=0.02)
            await queue.enqueue(1, id="after")
            await told(queue, "completed", 2)
    finally:
        await app.close()

    assert ["before", "after"] == stage.ran


async def test_a_second_handler_is_refused_and_a_named_worker_serves_what_it_is_told(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    other = app.queue("other")
    play(queue)
    play(other)
    with pytest.raises(ConfigurationError):
        play(queue)
    await queue.enqueue(1, id="served")
    await other.enqueue(1, id="left")
    await work(app, queues=["q"])

    assert ["served"] == stage.ran


async def test_a_worker_is_named_where_it_worked(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    play(queue)
    await queue.enqueue(1, id="a")
    await work(app)

    [event] = await actors.read(queue, 1)
    status = await queue.get("a")
    assert status is not None
    assert event.holder == status.holder != ""


# -- hooks -------------------------------------------------------------------------------------------------


async def test_a_hook_after_the_end_may_change_what_is_kept(app: Dibs) -> None:
    """Result and retention; after a success and after the last failure, not before a retry."""
    task = app.task(actors.doubled)
    task.after(actors.sealed)
    ticket = await task.enqueue(4)
    await work(app)

    assert {"sealed": 8} == await task.queue.ticket(ticket.id, ticket.revision).result(0)
    with pytest.raises(BadHandler):
        task.after(actors.sealed)


async def test_a_hook_that_breaks_changes_nothing(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the end is as it was."""
    task = app.task(actors.doubled)
    task.after(actors.breaks)
    ticket = await task.enqueue(4)
    with caplog.at_level(logging.ERROR, "dibs.worker"):
        await work(app)

    assert 8 == await ticket.result(0)
    assert "hook" in caplog.text


ENDED: list[str] = []


async def note_the_end(ending: Ending) -> None:
    ENDED.append(f"{ending.kind} {ending.attempt}")


async def test_a_hook_is_called_at_ends_only(app: Dibs) -> None:
    ENDED.clear()
    task = app.task(max_retries=2, backoff=Immediate())(actors.failing)
    task.after(note_the_end)
    await task.enqueue(1)
    await work(app)

    assert ["failed 3"] == ENDED


# -- stopping ----------------------------------------------------------------------------------------------


async def test_a_stop_loses_no_job(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Each is completed or waits as before, under no lease; the next worker runs the rest."""
    play(queue)
    await queue.enqueue_many([{"hold": True}] * 30)
    stopping = asyncio.create_task(run(app, grace=0))
    for _ in range(10):
        await stage.arrived()
    await actors.ask_to_stop()
    await stopping
    assert (30, 0) == ((await queue.counts()).waiting, (await queue.counts()).active)

    stage.go.set()
    await work(app)
    assert 30 == (await queue.counts()).completed


async def test_bad_settings_are_named(app: Dibs, queue: Queue) -> None:
    """With the field that is at fault, before anything is sent."""
    with pytest.raises(Refused) as refused:
        await queue.enqueue(1, max_attempts=3)  # type: ignore[call-arg]
    assert "max_attempts" == refused.value.field
    with pytest.raises(Refused):
        await queue.configure(log_level="loud")  # type: ignore[arg-type]
