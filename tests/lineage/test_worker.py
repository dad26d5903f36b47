"""Workers on each storage: limits, wake-ups, periodic tasks, timeouts, stalls, leases and stops."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Sequence
from typing import Any

import pytest

from dibs import Dibs, Exponential, Fixed, Immediate, JobCancelled, Queue
from dibs.client.calls.handler import PROCESS_UNITS
from dibs.model.requests import RetryLater, Settlement
from dibs.worker import run
from dibs.worker.work_plan import process_count
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    claim_and_die,
    read_events,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)
from tests.worker.faulty_storage import FaultyStorage, faulty_storage, replace_storage


def test_the_defaults_of_a_handler(queue: Queue, app: Dibs) -> None:
    """Timeout 60 s, 10 retries, 3 timeouts, 3 stalls, backoff from 2 s to 5 min, priority 100, and for a
    `def` size 10 of 100. For an `async def` it is 1.
    """
    queue.handler(scripted_handlers.scripted_blocking)
    app.queue("async").handler(scripted_handlers.scripted)
    handler = app.handlers["q"]

    assert (60_000, 10, 3, 3) == (
        handler.limits.timeout,
        handler.limits.max_retries,
        handler.limits.max_timeouts,
        handler.limits.max_stalls,
    )
    assert (Exponential(2, 300), False) == (handler.limits.backoff, Exponential().jitter)
    assert (10, 100, 100) == (handler.size, handler.queue_priority, PROCESS_UNITS)
    assert 1 == app.handlers["async"].size


class GrantTimes(FaultyStorage):
    """A storage that notes the lengths of the leases, in ms, that are asked of it."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.lease_ms: list[int] = []

    async def grant(self, queues: Sequence[str], ttl: int, holder: str, **options: Any) -> Any:
        self.lease_ms.append(ttl)
        return await self._storage.grant(queues, ttl, holder, **options)


async def test_a_worker_asks_for_a_lease_of_15_s(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A worker renews its lease three times in its length, polls every second, and has a grace of 30 s."""
    parameters = inspect.signature(Dibs.work).parameters
    assert (15, None, 1, 30) == tuple(
        parameters[name].default for name in ("lease", "heartbeat", "poll", "grace")
    )

    set_handler(queue)
    await queue.enqueue(1, id="a")
    async with replace_storage(app, GrantTimes) as storage, running_worker(app):
        await wait_for_event(queue, "completed")
    assert [15_000] == storage.lease_ms


def test_who_asks_how_many_processes_there_are(app: Dibs) -> None:
    """The default is one process for each CPU, or only this process for a storage in memory."""

    shared = app.storage.capabilities.shared
    assert ((os.cpu_count() or 1) if shared else 0) == process_count(None, app.storage)
    assert 0 == process_count(0, app.storage)


async def test_jobs_may_be_enqueued_before_anybody_works(
    storage_url: str, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can be enqueued before a worker starts, and after the worker was idle for several heartbeats."""
    app = Dibs(storage_url)
    queue = app.queue("q")
    set_handler(queue)
    await queue.enqueue(1, id="before")
    try:
        async with faulty_storage(app) as storage, running_worker(app, lease=2, heartbeat=0.2):
            await wait_for_event(queue, "completed")
            while storage.calls.count("renew") < 12:
                await storage.wait(["q"], since=None, timeout=0.02)
            await queue.enqueue(1, id="after")
            await wait_for_event(queue, "completed", 2)
    finally:
        await app.close()

    assert ["before", "after"] == record.ran


async def test_an_idle_worker_is_woken(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The enqueue wakes the worker; the next poll is a minute later."""
    set_handler(queue)
    async with running_worker(app, poll=60):
        for number in range(3):
            ticket = await queue.enqueue(number)
            assert number == await ticket.result(scripted_handlers.TIMEOUT)


async def test_a_worker_wakes_for_the_earliest_scheduled_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The earliest job may be enqueued after a later one. No job runs early."""
    set_handler(queue)
    async with running_worker(app, poll=60):
        await queue.enqueue(1, id="late", delay=1.5)
        await queue.enqueue(1, id="soon", delay=0.1)
        await wait_for_event(queue, "completed", 2)

    assert ["soon", "late"] == record.ran
    for event in await read_events(queue, 2):
        assert event.claimed_at is not None
        assert event.run_at is not None
        assert event.claimed_at >= event.run_at


async def test_a_periodic_task_runs_again_and_again(app: Dibs) -> None:
    """Each tick is a job of the task's queue, and needs no program but the worker."""
    task = app.task(every=0.1, queue="ticks")(scripted_handlers.no_result)
    async with running_worker(app):
        await wait_for_event(task.queue, "completed", 2)

    events = await read_events(task.queue, 2)
    assert {"schedule"} == {event.id for event in events}
    assert events[0].run_at != events[1].run_at


async def stalled(app: Dibs, queue: str, times: int) -> None:
    """Settle a due job as stalled, as a supervisor does for the runs of a dead process."""
    lease = (await app.storage.grant([queue], 60_000, "died")).lease
    for _ in range(times):
        [job] = (await app.storage.claim(queue, lease, 1)).jobs
        assert job.run is not None
        how = RetryLater(delay=0, cause="stall")
        await app.storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=how)])


async def test_a_handler_sees_its_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The handler can read id, data, attempt, counts and run_at of its job."""
    set_handler(queue)
    await queue.enqueue({"fail": 2}, id="a", attributes={"who": "me"})
    await stalled(app, "q", 1)
    await run_until_empty(app)

    job = record.jobs[-1]
    assert ("q", "a", 3, 1, 1, 0) == (job.queue, job.id, job.attempt, job.retries, job.stalls, job.timeouts)
    assert {"who": "me"} == job.attributes
    assert 0 <= (job.run_at - job.enqueued_at).total_seconds() < scripted_handlers.TIMEOUT


async def test_a_handler_may_enqueue_its_own_id_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can repeat itself: an enqueue of its own id runs after the current run."""
    set_handler(queue)
    record.queue = queue
    await queue.enqueue({"repeat": 3}, id="a")
    await scripted_handlers.run_until_empty(app)

    assert ["blocked"] * 3 == record.notes
    assert (["a"] * 4, 1) == (record.ran, record.max_active)


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Immediate(), [0, 0, 0]),
        (Fixed(0.007), [7, 7, 7]),
        (Exponential(0.004, 3600), [4, 8, 16]),
        (Exponential(0.004, 0.01), [4, 8, 10]),
    ],
)
async def test_strategies_of_backoff(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, backoff: Any, expected: list[int]
) -> None:
    """The first retry waits for the base; Exponential doubles the delay up to its cap. A job can have its own
    backoff.
    """
    set_handler(queue, max_retries=3)
    await queue.configure(log_level="runs")
    await queue.enqueue({"fail": 9}, id="a", backoff=backoff)
    await run_until_empty(app)

    events = await read_events(queue, 4)
    ends = [event.finished_at for event in events[:3]]
    starts = [event.run_at for event in events[1:]]
    pauses = [start - end for start, end in zip(starts, ends, strict=True) if start and end]
    assert expected == [round(pause.total_seconds() * 1000) for pause in pauses]


async def test_timeouts_have_a_budget_of_their_own(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A timeout, here that of the job, stops the run, counts only as a timeout, and the job is retried."""
    set_handler(queue, max_timeouts=1, max_retries=0)
    await queue.enqueue({"hold": True}, id="a", timeout=0.02)
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", 1, 0, 0) == (status.state, status.timeouts, status.retries, status.stalls)
    assert ("TimeoutError", "timeout", "took longer than its timeout of 0.02 s") == (
        status.error.type,
        status.error.kind,
        status.error.message,
    )
    assert ["a stopped"] * 2 == record.notes
    assert [0, 1] == [job.timeouts for job in record.jobs]
    assert all(job.deadline for job in record.jobs)
    assert ["timed_out", "failed"] == [event.kind for event in await read_events(queue, 2)]


async def test_a_running_job_can_be_asked_to_stop(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """With running=True the job is cancelled, with its handler; otherwise the run continues."""
    set_handler(queue)
    ticket = await queue.enqueue({"hold": True}, id="a")
    async with running_worker(app, heartbeat=0.02, lease=5):
        await record.wait_for_hold()
        assert "active" == await queue.cancel("a")
        assert "requested" == await queue.cancel("a", running=True)
        await wait_for_event(queue, "cancelled")

    assert ["a stopped"] == record.notes
    assert [True] == [job.cancelled for job in record.jobs]
    with pytest.raises(JobCancelled):
        await ticket.result(0)


async def test_a_worker_looks_for_stalls_when_it_begins(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A worker reaps at its start and at every heartbeat."""
    await queue.enqueue(1, id="a")
    await claim_and_die(app)
    set_handler(queue)
    async with running_worker(app, heartbeat=0.02, lease=5):
        await wait_for_event(queue, "completed")

    assert ["stalled", "completed"] == [event.kind for event in await read_events(queue, 2)]


async def test_what_runs_longer_than_its_lease_is_kept_by_the_heartbeat(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The worker renews the lease, so a run can be longer than its lease."""
    set_handler(queue)
    ticket = await queue.enqueue({"hold": True})
    async with faulty_storage(app) as storage, running_worker(app, lease=2, heartbeat=0.2):
        await record.wait_for_hold()
        while storage.calls.count("renew") < 12:
            await storage.wait(["q"], timeout=0.02)
        record.release.set()
        await ticket.result(scripted_handlers.TIMEOUT)

    assert ["completed"] == [event.kind for event in await read_events(queue, 1)]


async def test_a_handler_that_blocks_its_thread_loses_no_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A `def` handler runs on a thread, so the worker renews its lease: no stall, and others run."""
    record.loop = asyncio.get_running_loop()
    other = app.queue("other")
    set_handler(queue, scripted_handlers.scripted_blocking)
    set_handler(other)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage, running_worker(app, lease=1, heartbeat=0.1):
        await record.wait_for_hold()
        await storage.until(lambda: storage.calls.count("renew") >= 12)
        assert 1 == await (await other.enqueue(1)).result(scripted_handlers.TIMEOUT)
        record.release_threads.set()
        await wait_for_event(queue, "completed")

    assert ["completed"] == [event.kind for event in await read_events(queue, 1)]


async def test_a_worker_that_stops_gives_back_what_it_has(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The jobs are released without a retry, a stall or a delay, and the lease is removed."""
    set_handler(queue)
    await queue.enqueue_many([{"hold": True}] * 5)
    stopping = asyncio.create_task(run(app, grace=0))
    for _ in range(5):
        await record.wait_for_hold()
    await scripted_handlers.send_sigterm()
    report = await stopping

    states = [status async for status in queue.list("waiting")]
    assert [(0, 0, 0)] * 5 == [(status.attempts, status.retries, status.stalls) for status in states]
    assert 5 == report.queue("q").released
    assert [] == list(await app.storage.reap("q", 10))


async def test_a_paused_queue_is_paused_for_all_workers(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """No client can claim from it until it is resumed. Its active jobs end, and other queues are served."""
    other = app.queue("other")
    set_handler(queue)
    set_handler(other)
    await queue.enqueue({"hold": True}, id="active")
    async with running_worker(app):
        await record.wait_for_hold()
        await queue.pause()
        await queue.enqueue(1, id="later")
        record.release.set()
        await wait_for_event(queue, "completed")
        assert 1 == await (await other.enqueue(1)).result(scripted_handlers.TIMEOUT)
        async with app.queue("q").receive(wait=0) as claims:
            assert [] == [claim async for claim in claims]
        assert "later" not in record.ran
        await queue.resume()
        await wait_for_event(queue, "completed", 2)


async def test_a_job_made_during_a_request_gives_its_result_to_the_request(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The web server enqueues with one app, and the worker has another app on the same storage."""
    set_handler(queue)
    async with Dibs(app.url) as web, running_worker(app):
        assert {"x": 2} == await web.queue("q").enqueue_and_wait({"x": 2}, wait=scripted_handlers.TIMEOUT)
