"""queasy: counts of timeouts, defaults of a worker, records and periodic jobs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from dibs import Dibs, Queue
from dibs.model.requests import RetryLater, Settlement
from dibs.model.retry import RetryCause
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import run_until_empty, running_worker, set_handler, wait_for_event
from tests.worker.faulty_storage import FaultyStorage, replace_storage

# -- counts ----------------------------------------------------------------------------------------------


async def test_a_handler_sees_how_often_its_job_timed_out(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Each timeout adds 1 to `job.timeouts`; the counts of retries and stalls stay 0."""
    set_handler(queue, timeout=0.05, max_timeouts=None, max_retries=0)
    await queue.enqueue({"hold_attempts": 2}, id="a")
    await run_until_empty(app)

    assert [job.attempt - 1 for job in record.jobs] == [job.timeouts for job in record.jobs]
    assert record.jobs[-1].timeouts >= 2
    assert {(0, 0)} == {(job.retries, job.stalls) for job in record.jobs}


async def test_new_data_resets_all_three_counts(app: Dibs, queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    lease = (await app.storage.grant(["q"], 60_000, "test")).lease
    causes: Sequence[RetryCause] = ("error", "stall", "timeout")
    for cause in causes:
        [job] = (await app.storage.claim("q", lease, 1)).jobs
        assert job.run is not None
        action = RetryLater(delay=0, cause=cause)
        await app.storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=action)])
    before = await queue.get("a")
    await queue.enqueue(2, id="a")
    after = await queue.get("a")

    assert before is not None
    assert after is not None
    assert (1, 1, 1) == (before.retries, before.stalls, before.timeouts)
    assert (0, 0, 0) == (after.retries, after.stalls, after.timeouts)


# -- defaults of a worker --------------------------------------------------------------------------------


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


# -- periodic jobs ---------------------------------------------------------------------------------------


async def test_a_periodic_task_runs_again_and_again(app: Dibs) -> None:
    """Each tick is a job of the task's queue, and needs no program but the worker."""
    task = app.task(every=0.1, queue="ticks")(scripted_handlers.no_result)
    async with running_worker(app):
        await wait_for_event(task.queue, "completed", 2)

    events = await scripted_handlers.read_events(task.queue, 2)
    assert {"schedule"} == {event.id for event in events}
    assert events[0].run_at != events[1].run_at
