"""@platformatic/job-queue: workers, hooks and shutdown."""

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
from dibs.worker import run
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import run_until_empty, running_worker, set_handler, wait_for_event
from tests.worker.faulty_storage import faulty_storage

# -- the worker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(100, 1), (25, 4), (1, 100)])
async def test_so_many_run_at_once(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, size: int, most: int
) -> None:
    """A process has 100 capacity units, for one job of size 100, four of 25 or a hundred of 1."""
    set_handler(queue, size=size)
    await queue.enqueue_many([{"hold": True}] * (most + 5))
    async with running_worker(app):
        for _ in range(most):
            await record.wait_for_hold()
        assert most == record.active
        record.release.set()
        await wait_for_event(queue, "completed", most + 5)

    assert most == record.max_active


async def test_attempts_count_from_one(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job with n retries has n + 1 runs."""
    set_handler(queue, max_retries=0)
    await queue.enqueue({"fail": 1}, id="a")
    await queue.enqueue({"fail": 2}, id="b", max_retries=2)
    await run_until_empty(app)

    assert ([1], [1, 2, 3]) == (
        [job.attempt for job in record.jobs if job.id == "a"],
        [job.attempt for job in record.jobs if job.id == "b"],
    )


async def test_a_run_over_its_time_is_stopped_not_only_told(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The handler is cancelled, and it can read job.deadline."""
    set_handler(queue, timeout=0.05, max_timeouts=0)
    await queue.enqueue({"hold": True}, id="a")
    await run_until_empty(app)

    assert ["a stopped"] == record.notes
    assert record.jobs[0].deadline is not None


async def test_a_result_that_cannot_be_stored_fails_the_job_at_once(app: Dibs, queue: Queue) -> None:
    """With strict_results the job fails with ResultNotSerializable, without a retry."""
    set_handler(queue, returns_a_set, strict_results=True)
    ticket = await queue.enqueue(1, id="a")
    await run_until_empty(app)

    with pytest.raises(JobFailed, match="ResultNotSerializable"):
        await ticket.result(0)
    assert 1 == (await ticket.status()).attempts


async def returns_a_set(data: Any) -> Any:
    return {object()}


async def test_an_end_that_could_not_be_told_is_told_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """If the storage fails during a settlement, the worker repeats it; the handler runs once."""
    set_handler(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage, running_worker(app):
        await record.wait_for_hold()
        storage.fail("settle_and_claim", OSError("away"))
        storage.fail("settle", OSError("away"))
        record.release.set()
        await wait_for_event(queue, "completed")

    assert ["a"] == record.ran


async def test_jobs_may_be_enqueued_before_anybody_works(
    storage_url: str, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can be enqueued before a worker starts, and after the worker was idle for several heartbeats."""
    app = Dibs(storage_url)
    queue = app.queue("q")
    set_handler(queue)
    await queue.enqueue(1, id="before")
    try:
        async with faulty_storage(app) as storage, running_worker(app, lease=0.4, heartbeat=0.04):
            await wait_for_event(queue, "completed")
            while storage.calls.count("renew") < 12:
                await storage.wait(["q"], since=None, timeout=0.02)
            await queue.enqueue(1, id="after")
            await wait_for_event(queue, "completed", 2)
    finally:
        await app.close()

    assert ["before", "after"] == record.ran


async def test_a_second_handler_is_refused_and_a_named_worker_serves_what_it_is_told(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    other = app.queue("other")
    set_handler(queue)
    set_handler(other)
    with pytest.raises(ConfigurationError):
        set_handler(queue)
    await queue.enqueue(1, id="served")
    await other.enqueue(1, id="left")
    await run_until_empty(app, queues=["q"])

    assert ["served"] == record.ran


async def test_a_worker_is_named_where_it_worked(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    set_handler(queue)
    await queue.enqueue(1, id="a")
    await run_until_empty(app)

    [event] = await scripted_handlers.read_events(queue, 1)
    status = await queue.get("a")
    assert status is not None
    assert event.holder == status.holder != ""


# -- hooks -------------------------------------------------------------------------------------------------


async def test_a_hook_after_the_end_may_change_what_is_kept(app: Dibs) -> None:
    """The hook changes the result that is stored."""
    task = app.task(scripted_handlers.double)
    task.after(scripted_handlers.seal_result)
    ticket = await task.enqueue(4)
    await run_until_empty(app)

    assert {"sealed": 8} == await task.queue.ticket(ticket.id, ticket.revision).result(0)
    with pytest.raises(BadHandler):
        task.after(scripted_handlers.seal_result)


async def test_a_hook_that_breaks_changes_nothing(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    """The error of the hook is logged, and the result is stored unchanged."""
    task = app.task(scripted_handlers.double)
    task.after(scripted_handlers.raise_in_hook)
    ticket = await task.enqueue(4)
    with caplog.at_level(logging.ERROR, "dibs.worker"):
        await run_until_empty(app)

    assert 8 == await ticket.result(0)
    assert "hook" in caplog.text


ENDED: list[str] = []


async def note_the_end(ending: Ending) -> None:
    ENDED.append(f"{ending.kind} {ending.attempt}")


async def test_a_hook_is_called_at_ends_only(app: Dibs) -> None:
    ENDED.clear()
    task = app.task(max_retries=2, backoff=Immediate())(scripted_handlers.always_failing)
    task.after(note_the_end)
    await task.enqueue(1)
    await run_until_empty(app)

    assert ["failed 3"] == ENDED


# -- stopping ----------------------------------------------------------------------------------------------


async def test_a_stop_loses_no_job(app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord) -> None:
    """After the stop each job is completed or waiting; the next worker runs the waiting jobs."""
    set_handler(queue)
    await queue.enqueue_many([{"hold": True}] * 30)
    stopping = asyncio.create_task(run(app, grace=0))
    for _ in range(10):
        await record.wait_for_hold()
    await scripted_handlers.send_sigterm()
    await stopping
    assert (30, 0) == ((await queue.counts()).waiting, (await queue.counts()).active)

    record.release.set()
    await run_until_empty(app)
    assert 30 == (await queue.counts()).completed


async def test_bad_settings_are_named(app: Dibs, queue: Queue) -> None:
    """The error names the field, and no call is sent."""
    with pytest.raises(Refused) as refused:
        await queue.enqueue(1, max_attempts=3)  # type: ignore[call-arg]
    assert "max_attempts" == refused.value.field
    with pytest.raises(Refused):
        await queue.configure(log_level="loud")  # type: ignore[arg-type]
