"""queasy: jobs that failed for good, and runs that take too long."""

from __future__ import annotations

import asyncio
import os

from dibs import (
    Dibs,
    Immediate,
    Queue,
)
from tests.lineage import actors
from tests.lineage.actors import play, told, work, working

# -- jobs that failed for good ---------------------------------------------------------------------------


async def test_a_failure_handler_is_told_the_whole_story(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Promise 5: id, data, error and counts; it has retries of its own, and runs at least once."""
    play(queue, max_retries=1)
    queue.on_failure(backoff=Immediate())(actors.tell_at_last)
    await queue.enqueue({"fail": 9}, id="a", attributes={"who": "me"})
    report = await work(app)

    failure = stage.failures[-1]
    assert ("q", "a", {"fail": 9}) == (failure.queue, failure.id, failure.data)
    assert ("ValueError", "no 2") == (failure.error.type, failure.error.message)
    assert "actors.py" in failure.error.traceback
    assert (2, 1, 0, 0) == (failure.attempts, failure.retries, failure.stalls, failure.timeouts)
    assert (3, 2, 1) == (len(stage.failures), report.queue("q!fail").retried, report.queue("q!fail").completed)


async def test_a_fail_job_comes_in_the_step_of_the_end(app: Dibs, queue: Queue) -> None:
    """Promise 5: the job is gone and its fail job there, or neither; equal failures are two fail jobs."""
    queue.on_failure(actors.tell)
    for _ in range(2):
        await queue.enqueue(1, id="a")
        async with queue.receive(wait=0) as claims:
            await (await anext(claims)).fail("no")

    assert (0, 1) == ((await queue.counts()).active, (await queue.counts()).failed)
    assert 2 == (await app.queue("q!fail").counts()).waiting


async def test_what_nobody_handles_is_kept_and_can_be_tried_again(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """A failed outcome keeps its error and data; nothing vanishes for want of a failure handler."""
    play(queue, max_retries=0)
    await queue.enqueue({"fail": 1}, id="a")
    await work(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", "no 1") == (status.state, status.error.message)
    assert "queued" == await queue.retry_failed("a")
    assert 0 == (await app.queue("q!fail").counts()).waiting


async def test_a_fail_job_that_fails_for_good_is_kept(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Contract 3, the fail job: an outcome kept for ever and shown, and no fail queue of its own."""
    play(queue, max_retries=0)
    queue.on_failure(actors.cannot_tell)
    await queue.enqueue({"fail": 1}, id="a")
    await work(app)

    kept = [status async for status in app.queue("q!fail").list("failed")]
    assert [("failed", None)] == [(status.state, status.expires_at) for status in kept]
    assert kept[0].error is not None
    assert "the pager is broken" == kept[0].error.message


# -- timeouts --------------------------------------------------------------------------------------------


async def test_timeouts_have_a_budget_of_their_own(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """A run over its time is stopped, is counted as a timeout and as nothing else, and comes back."""
    play(queue, timeout=0.02, max_timeouts=1, max_retries=0)
    await queue.enqueue({"hold": True}, id="a")
    await work(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", 1, 0, 0) == (status.state, status.timeouts, status.retries, status.stalls)
    assert "TimeoutError" == status.error.type
    assert ["a stopped"] * 2 == stage.notes
    assert ["timed_out", "failed"] == [event.kind for event in await actors.read(queue, 2)]


async def test_overrun_jobs_leave_the_room_as_it_was(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Neither more units than there were, nor fewer: two of size 50 at once, before and after overruns."""
    stage.loop = asyncio.get_running_loop()
    play(queue, actors.act_plain, size=50, timeout=0.03, max_timeouts=0)
    play(app.queue("after"), size=50)
    for id in ("a", "b", "c"):
        await queue.enqueue({"hold": True}, id=id)
    await work(app)
    stage.leave()
    stage.most = stage.now = 0
    for number in range(8):
        await app.queue("after").enqueue({"hold": True}, id=str(number))
    async with working(app):
        await stage.arrived()
        assert {"a", "b", "c"} >= {await stage.arrived()}
        stage.go.set()
        await told(app.queue("after"), "completed", 8)

    assert 3 == (await queue.counts()).failed


async def test_an_id_may_run_in_two_queues_at_once(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """(queue, id) is what is one."""
    other = app.queue("other")
    play(queue)
    play(other)
    tickets = [await one.enqueue({"hold": True, "return": one.name}, id="a") for one in (queue, other)]
    async with working(app):
        assert ["a", "a"] == [await stage.arrived(), await stage.arrived()]
        stage.go.set()
        assert ["q", "other"] == [await ticket.result(actors.SOON) for ticket in tickets]


def test_who_asks_how_many_processes_there_are(app: Dibs) -> None:
    """One a CPU when nothing is said; none but this one where the storage lives here."""
    from dibs.worker.work_plan import process_count

    shared = app.storage.capabilities.shared
    assert ((os.cpu_count() or 1) if shared else 0) == process_count(None, app.storage)
    assert 0 == process_count(0, app.storage)
