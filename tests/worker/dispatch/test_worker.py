"""The claims of a worker: their order and number, and the requests that they cost."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.errors import ConfigurationError, UnknownTask
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.model.results import Counts
from dibs.worker import WorkReport, run
from tests.worker.faulty_storage import FaultyStorage, faulty_storage
from tests.worker.jobs import add, ids, outcome, put, wait_for_count


class Recorder:
    """Records the order in which jobs run, and the largest number of jobs that run at the same time."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running = 0
        self.most = 0

    def handler(self, name: str) -> object:
        async def handle() -> None:
            self.order.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0.001)
            self.running -= 1

        return handle

    def add(self, app: Dibs, name: str, **options: int) -> None:
        add(app, name, self.handler(name), **options)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(app: Dibs, **options: float) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """Run a worker until the end of the block, then stop it."""
    task = asyncio.create_task(run(app, **options))  # type: ignore[arg-type]
    yield task
    os.kill(os.getpid(), signal.SIGTERM)
    await task


async def test_runs_never_exceed_the_capacity(app: Dibs) -> None:
    recorder = Recorder()
    recorder.add(app, "q", size=25)
    await put(app, "q", *ids(20))
    await run(app, until="empty")

    assert 4 == recorder.most


async def test_jobs_start_in_the_order_of_the_queue(app: Dibs) -> None:
    order: list[str] = []
    add(app, "q", lambda: order.append(current_job().id), size=100)
    await put(app, "q", *ids(10))
    await run(app, until="empty")

    assert order == ids(10)


async def test_the_higher_queue_priority_goes_first(app: Dibs) -> None:
    recorder = Recorder()
    recorder.add(app, "low", size=100, queue_priority=1)
    recorder.add(app, "high", size=100, queue_priority=2)
    for queue in ("low", "high"):
        await put(app, queue, *ids(5))
    await run(app, until="empty")

    assert ["high"] * 5 + ["low"] * 5 == recorder.order


async def test_equals_take_turns(app: Dibs) -> None:
    recorder = Recorder()
    for queue in ("a", "b", "c"):
        recorder.add(app, queue, size=100)
        await put(app, queue, *ids(4))
    await run(app, until="empty")

    assert [["a", "b", "c"]] * 4 == [sorted(recorder.order[n : n + 3]) for n in (0, 3, 6, 9)]


async def test_a_large_job_is_not_starved_by_small_ones(app: Dibs) -> None:
    recorder = Recorder()
    recorder.add(app, "small", size=10)
    recorder.add(app, "large", size=100)
    await put(app, "small", *ids(200))
    await put(app, "large", *ids(3))
    await run(app, until="empty")

    assert 3 == recorder.order.count("large")
    assert recorder.order.index("large") < 100
    assert "small" == recorder.order[-1]


async def test_no_capacity_is_kept_free_for_large_jobs_that_do_not_exist(app: Dibs) -> None:
    """The same holds for the jobs of a paused queue: the worker only counts them."""
    recorder = Recorder()
    recorder.add(app, "small", size=10)
    recorder.add(app, "large", size=100)
    await put(app, "large", "a")
    await app.storage.configure("large", SettingsPatch(paused=True))
    async with serving(app, poll=0.02), asyncio.timeout(20):
        await put(app, "small", *ids(1000))
        await wait_for_count(app, "small", "completed", 1000)

    assert 10 == recorder.most
    assert "large" not in recorder.order


async def test_an_empty_queue_of_large_jobs_is_counted_and_not_claimed_from(app: Dibs) -> None:
    recorder = Recorder()
    recorder.add(app, "small", size=10)
    recorder.add(app, "large", size=100)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        entered.set()
        await leave.wait()

    add(app, "stays", stay, queue_priority=200)
    async with faulty_storage(app) as storage, serving(app, poll=0.01):
        await put(app, "stays", "a")
        await entered.wait()
        storage.asked.clear()
        await put(app, "small", *ids(500))
        await wait_for_count(app, "small", "completed", 500)
        asked = list(storage.asked)
        leave.set()

    assert ("claim", "large") not in asked
    assert ("counts", ["large"]) in asked


async def test_a_job_wakes_an_idle_worker(app: Dibs) -> None:
    add(app, "q", lambda: None)
    async with serving(app, poll=3600.0):
        for id in ids(5):
            await put(app, "q", id)
            await wait_for_count(app, "q", "completed", int(id[-1]) + 1)


async def test_a_scheduled_job_runs_when_it_is_due(app: Dibs) -> None:
    """The next poll is an hour later, so the worker knows the time at which the job is due."""
    add(app, "q", lambda: None)
    async with serving(app, poll=3600.0):
        later = NewJob(id="a", data=JobData(payload=b"[]"), delay=200)
        await app.storage.enqueue("q", [EnqueueRequest(job=later)])
        await wait_for_count(app, "q", "completed")
        [(_, event)] = (await app.storage.events("q")).events

    assert event.claimed_at is not None
    assert event.claimed_at >= event.run_at


async def test_the_poll_finds_a_job_whose_wake_up_was_lost(app: Dibs) -> None:
    add(app, "q", lambda: None)
    async with faulty_storage(app) as storage:
        quiet = await app.storage.wait(["q"], timeout=0)
        for _ in range(3):
            storage.answer("wait", quiet)
        await put(app, "q", "a")
        await run(app, until="empty", poll=0.01)

    assert "completed" == (await outcome(app, "q", "a")).kind


async def test_an_idle_worker_sends_no_requests(app: Dibs) -> None:
    for queue in ids(20):
        add(app, queue, lambda: None)
    async with faulty_storage(app) as storage, serving(app, poll=3600.0, lease=3600.0, heartbeat=1000.0):
        await put(app, "job-000", "a")
        await wait_for_count(app, "job-000", "completed")
        await asyncio.sleep(0.1)
        storage.calls.clear()
        await asyncio.sleep(0.3)
        asked = list(storage.calls)

    assert [] == asked


def waits_for_all(storage: FaultyStorage) -> bool:
    """Return whether the worker waits for all fifty queues in one call."""
    return any(verb == "wait" and len(queues) == 50 for verb, queues in storage.asked)


async def test_fifty_idle_queues_cost_as_much_as_one(app: Dibs) -> None:
    """The poll, the heartbeat and the search for dead holders each serve all queues with one call."""
    for queue in ids(50):
        add(app, queue, lambda: None)
    async with faulty_storage(app) as storage, serving(app, poll=0.01, heartbeat=0.02):
        await storage.until(lambda: waits_for_all(storage) and storage.calls.count("counts") > 1)
        storage.calls.clear()
        storage.asked.clear()
        often = {"wait": 20, "counts": 5, "renew": 2}
        await storage.until(lambda: all(storage.calls.count(verb) >= n for verb, n in often.items()))
        asked = list(storage.asked)

    assert often.keys() == {verb for verb, _ in asked}
    assert {50} == {len(queues) for _, queues in asked}


async def test_an_active_queue_causes_no_work_for_idle_ones(app: Dibs) -> None:
    for queue in ids(50):
        add(app, queue, lambda: None)
    async with faulty_storage(app) as storage, serving(app, poll=3600.0, heartbeat=1000.0, lease=3600.0):
        await storage.until(lambda: waits_for_all(storage))
        storage.asked.clear()
        for n in range(30):
            await put(app, "job-000", str(n))
            await wait_for_count(app, "job-000", "completed", n + 1)
        asked = list(storage.asked)

    waits = [len(queues) for verb, queues in asked if verb == "wait" and len(queues) > 1]
    assert waits in ([49], [50, 49]), "one restart without the active queue"
    assert {"job-000"} == {queue for verb, queue in asked if verb == "claim"}


async def test_claims_are_sent_with_settlements(app: Dibs) -> None:
    """There is at most one round trip for each batch."""
    add(app, "q", lambda: None, size=1)
    async with faulty_storage(app) as storage:
        await put(app, "q", *ids(1000))
        storage.calls.clear()
        await run(app, until="empty")
        round_trips = sum(storage.calls.count(verb) for verb in ("claim", "settle_and_claim", "settle"))

    assert round_trips < 120


async def test_a_queue_is_served_together_with_its_fail_queue(app: Dibs) -> None:
    seen: list[str] = []
    for queue in ("a", "a!fail", "b"):
        add(app, queue, lambda: None)

    def collect(report: WorkReport) -> None:
        seen.extend(report.queues)

    await run(app, queues=["a"], until="empty", progress=collect)

    assert {"a", "a!fail"} == set(seen)


async def test_progress_is_reported_during_the_work(app: Dibs) -> None:
    shown: list[tuple[int, int]] = []

    async def collect(report: WorkReport) -> None:
        shown.append((report.queue("q").running, report.total("completed")))

    leave = asyncio.Event()

    async def handler() -> None:
        leave.set()
        await asyncio.sleep(0.25)

    add(app, "q", handler)
    await put(app, "q", "a")
    await run(app, until="empty", progress=collect)

    assert (1, 0) in shown
    assert (0, 1) == shown[-1]


async def test_queues_without_a_handler_are_named_once(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    add(app, "q", lambda: None)
    await put(app, "nobodys", "a")
    with caplog.at_level(logging.WARNING, "dibs.worker"):
        await run(app, until="empty")

    assert ["queues without a handler on this worker: nobodys"] == [
        record.getMessage() for record in caplog.records
    ]


async def test_a_storage_in_memory_refuses_worker_processes(app: Dibs) -> None:
    add(app, "q", lambda: None)
    with pytest.raises(ConfigurationError, match="use processes=0"):
        await run(app, processes=2)


async def test_a_queue_that_has_no_handler_is_refused(app: Dibs) -> None:
    add(app, "q", lambda: None)
    with pytest.raises(UnknownTask, match="there are q"):
        await run(app, queues=["p"])


async def test_a_worker_without_handlers_is_refused(app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match="no handler to run"):
        await run(app)


async def test_until_empty_waits_for_scheduled_and_blocked_jobs(app: Dibs) -> None:
    async def again() -> None:
        if current_job().attempt == 1 and not seen:
            seen.append(1)
            await app.storage.enqueue(
                "q", [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"[]"), delay=100))]
            )

    seen: list[int] = []
    add(app, "q", again)
    await put(app, "q", "a")

    report = await run(app, until="empty")

    assert 2 == report.total("completed")


async def test_a_count_that_misses_a_reaped_job_does_not_end_the_work(app: Dibs) -> None:
    """A storage may count the states one after the other, and miss a job that is reaped in between."""
    add(app, "q", lambda: None)
    async with faulty_storage(app) as storage:
        later = EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"[]"), delay=300))
        await app.storage.enqueue("q", [later])
        # The worker counts twice: before it reaps, and before it ends.
        storage.answer("counts", {"q": Counts()})
        storage.answer("counts", {"q": Counts()})
        report = await run(app, until="empty")

    assert 1 == report.total("completed")


async def test_until_empty_does_not_wait_for_a_paused_queue(app: Dibs) -> None:
    add(app, "paused", lambda: 1)
    add(app, "q", lambda: 1)
    await put(app, "paused", "a")
    await put(app, "q", "b")
    await app.storage.configure("paused", SettingsPatch(paused=True))

    async with asyncio.timeout(20):
        report = await run(app, until="empty")

    assert (0, 1) == (report.queue("paused").claimed, report.queue("q").completed)
