"""queasy: failed jobs and timeouts."""

from __future__ import annotations

import asyncio
import os

from dibs import (
    Dibs,
    Immediate,
    Queue,
)
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import run_until_empty, running_worker, set_handler, wait_for_event

# -- failed jobs -----------------------------------------------------------------------------------------


async def test_a_failure_handler_is_told_the_whole_story(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Promise 5: the failure handler gets id, data, error and counts, and has its own retries."""
    set_handler(queue, max_retries=1)
    queue.on_failure(backoff=Immediate())(scripted_handlers.failure_handler_third_attempt)
    await queue.enqueue({"fail": 9}, id="a", attributes={"who": "me"})
    report = await run_until_empty(app)

    failure = record.failures[-1]
    assert ("q", "a", {"fail": 9}) == (failure.queue, failure.id, failure.data)
    assert ("ValueError", "no 2") == (failure.error.type, failure.error.message)
    assert "scripted_handlers.py" in failure.error.traceback
    assert ("error", {"who": "me"}) == (failure.kind, failure.attributes)
    assert failure.run_at >= failure.enqueued_at
    assert (2, 1, 0, 0) == (failure.attempts, failure.retries, failure.stalls, failure.timeouts)
    assert (3, 2, 1) == (
        len(record.failures),
        report.queue("q!fail").retried,
        report.queue("q!fail").completed,
    )


async def test_a_fail_job_comes_in_the_step_of_the_end(app: Dibs, queue: Queue) -> None:
    """Promise 5: the end of the job and its fail job are one atomic step. Each failure has a fail job."""
    queue.on_failure(scripted_handlers.failure_handler)
    for _ in range(2):
        await queue.enqueue(1, id="a")
        async with queue.receive(wait=0) as claims:
            await (await anext(claims)).fail("no")

    assert (0, 1) == ((await queue.counts()).active, (await queue.counts()).failed)
    assert 2 == (await app.queue("q!fail").counts()).waiting


async def test_what_nobody_handles_is_kept_and_can_be_tried_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Without a failure handler, the failed outcome keeps its error and data."""
    set_handler(queue, max_retries=0)
    await queue.enqueue({"fail": 1}, id="a")
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", "no 1") == (status.state, status.error.message)
    assert "queued" == await queue.retry_failed("a")
    assert 0 == (await app.queue("q!fail").counts()).waiting


async def test_a_fail_job_that_fails_for_good_is_kept(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Contract 3, the fail job: its failed outcome is kept forever, and it has no fail job itself."""
    set_handler(queue, max_retries=0)
    queue.on_failure(scripted_handlers.failure_handler_that_fails)
    await queue.enqueue({"fail": 1}, id="a")
    await run_until_empty(app)

    kept = [status async for status in app.queue("q!fail").list("failed")]
    assert [("failed", None)] == [(status.state, status.expires_at) for status in kept]
    assert kept[0].error is not None
    assert "the pager is broken" == kept[0].error.message


# -- timeouts --------------------------------------------------------------------------------------------


async def test_timeouts_have_a_budget_of_their_own(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A timeout stops the run, counts only as a timeout, and the job is retried."""
    set_handler(queue, timeout=0.02, max_timeouts=1, max_retries=0)
    await queue.enqueue({"hold": True}, id="a")
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", 1, 0, 0) == (status.state, status.timeouts, status.retries, status.stalls)
    assert ("TimeoutError", "timeout") == (status.error.type, status.error.kind)
    assert ["a stopped"] * 2 == record.notes
    assert ["timed_out", "failed"] == [event.kind for event in await scripted_handlers.read_events(queue, 2)]


async def test_overrun_jobs_leave_the_room_as_it_was(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """After overruns the worker still runs two jobs of size 50 at a time."""
    record.loop = asyncio.get_running_loop()
    set_handler(queue, scripted_handlers.scripted_blocking, size=50, timeout=0.03, max_timeouts=0)
    set_handler(app.queue("after"), size=50)
    for id in ("a", "b", "c"):
        await queue.enqueue({"hold": True}, id=id)
    await run_until_empty(app)
    record.release_threads.set()
    record.max_active = record.active = 0
    for number in range(8):
        await app.queue("after").enqueue({"hold": True}, id=str(number))
    async with running_worker(app):
        await record.wait_for_hold()
        assert {"a", "b", "c"} >= {await record.wait_for_hold()}
        record.release.set()
        await wait_for_event(app.queue("after"), "completed", 8)

    assert 3 == (await queue.counts()).failed


async def test_an_id_may_run_in_two_queues_at_once(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job is identified by queue and id."""
    other = app.queue("other")
    set_handler(queue)
    set_handler(other)
    tickets = [await one.enqueue({"hold": True, "return": one.name}, id="a") for one in (queue, other)]
    async with running_worker(app):
        assert ["a", "a"] == [await record.wait_for_hold(), await record.wait_for_hold()]
        record.release.set()
        assert ["q", "other"] == [await ticket.result(scripted_handlers.TIMEOUT) for ticket in tickets]


def test_who_asks_how_many_processes_there_are(app: Dibs) -> None:
    """The default is one process for each CPU, or only this process for a storage in memory."""
    from dibs.worker.work_plan import process_count

    shared = app.storage.capabilities.shared
    assert ((os.cpu_count() or 1) if shared else 0) == process_count(None, app.storage)
    assert 0 == process_count(0, app.storage)
