"""Timeouts, cancellations, stop signals and lost leases of a worker in the process of the test."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from dibs.app import Dibs
from dibs.client.calls.current_job import CurrentJob, current_job
from dibs.errors import StorageUnavailable
from dibs.worker import WorkReport, run
from tests.worker.faulty_storage import FaultyStorage, faulty_storage
from tests.worker.jobs import add, current, event_kinds, ids, outcome, put, wait_for_count


class Held:
    """An `async def` handler that sets `here` and waits for `go`."""

    def __init__(self) -> None:
        self.here = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0
        self.job: CurrentJob | None = None

    async def __call__(self) -> str:
        self.job = current_job()
        self.here.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"

    def add(self, app: Dibs, queue: str, **options: object) -> None:
        async def handler() -> str:
            return await self()

        add(app, queue, handler, **options)


class HeldThread:
    """A `def` handler that sets `here` and waits for `go`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.here = asyncio.Event()
        self.go = threading.Event()
        self.watch: Callable[[CurrentJob], bool] = lambda _: self.go.wait(0.01)

    def __call__(self) -> str:
        job = current_job()
        self.loop.call_soon_threadsafe(self.here.set)
        while not self.watch(job):
            pass
        return "done"


async def arrived(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


async def send_sigterm() -> None:
    """Send SIGTERM to this process, and return when the loop has handled it."""
    os.kill(os.getpid(), signal.SIGTERM)
    # A thread wakes the loop through the same pipe as a signal, so the signal is handled first.
    await asyncio.to_thread(int)
    for _ in range(20):
        await asyncio.sleep(0)


class TestTimeout:
    async def test_an_async_handler_is_cancelled_and_retried(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q", timeout=20, max_timeouts=2)
        await put(app, "q", "a")

        report = await run(app, until="empty")

        failed = await outcome(app, "q", "a")
        assert ["timed_out", "timed_out", "failed"] == await event_kinds(app, "q", "a")
        assert (3, "failed", 2, 0) == (held.cancelled, failed.kind, failed.timeouts, failed.retries)
        assert failed.error is not None
        assert (
            "TimeoutError",
            "took longer than its timeout of 0.02 s",
        ) == (failed.error.type, failed.error.message)
        assert "__call__" in failed.error.traceback
        assert 2 == report.total("timed_out")

    async def test_a_run_that_returns_after_its_cancellation_completes(self, app: Dibs) -> None:
        async def stubborn() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "done"
            return "never"

        add(app, "q", stubborn, timeout=20)
        await put(app, "q", "a")
        await run(app, until="empty")

        assert b'"done"' == (await outcome(app, "q", "a")).result

    async def test_a_def_handler_loses_its_fence_and_frees_its_capacity(self, app: Dibs) -> None:
        held = HeldThread()
        add(app, "q", held, timeout=20, max_timeouts=0, size=100)
        add(app, "other", lambda: 1, size=100)
        await put(app, "q", "a")
        await put(app, "other", "b")

        report = await run(app, until="empty")

        assert (
            "failed",
            "completed",
        ) == ((await outcome(app, "q", "a")).kind, (await outcome(app, "other", "b")).kind)
        assert (1, 0) == (report.overruns, report.queue("q").completed)
        held.go.set()

    async def test_each_run_has_its_own_deadline(self, app: Dibs) -> None:
        long, short = Held(), Held()
        long.add(app, "long", timeout=60_000)
        short.add(app, "short", timeout=30, max_timeouts=0)
        await put(app, "long", "a")
        await put(app, "short", "b")
        working = asyncio.create_task(run(app, until="empty"))
        await arrived(long.here)
        await wait_for_count(app, "short", "failed")
        long.go.set()
        await working

        assert ("completed", 1) == ((await outcome(app, "long", "a")).kind, short.cancelled)


class TestCancel:
    async def test_an_async_handler_is_cancelled(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, until="empty", heartbeat=0.02))
        await arrived(held.here)
        await app.storage.cancel("q", ["a"], running=True)

        report = await working

        assert ("cancelled", 1) == ((await outcome(app, "q", "a")).kind, held.cancelled)
        assert held.job is not None
        assert held.job.cancelled
        assert 1 == report.total("cancelled")

    async def test_a_def_handler_sees_it(self, app: Dibs) -> None:
        held = HeldThread()
        held.watch = lambda job: job.cancelled
        add(app, "q", held)
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, until="empty", heartbeat=0.02))
        await arrived(held.here)
        await app.storage.cancel("q", ["a"], running=True)
        await working

        assert "completed" == (await outcome(app, "q", "a")).kind

    async def test_a_run_of_another_queue_continues(self, app: Dibs) -> None:
        held, other = Held(), Held()
        held.add(app, "q")
        other.add(app, "other")
        await put(app, "q", "a")
        await put(app, "other", "a")
        working = asyncio.create_task(run(app, until="empty", heartbeat=0.02))
        await arrived(held.here)
        await arrived(other.here)
        await app.storage.cancel("q", ["a"], running=True)
        await wait_for_count(app, "q", "cancelled")
        other.go.set()
        await working

        assert "completed" == (await outcome(app, "other", "a")).kind


class TestSignals:
    async def test_the_first_waits_for_running_jobs_and_claims_no_more(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q", size=100)
        await put(app, "q", "a", "b")
        working = asyncio.create_task(run(app))
        await arrived(held.here)
        await send_sigterm()
        held.go.set()

        report = await working

        assert "completed" == (await outcome(app, "q", "a")).kind
        assert 0 == (await current(app, "q", "b")).attempts
        assert (1, 0, 0) == (report.total("completed"), report.total("released"), held.cancelled)

    async def test_after_the_grace_remaining_runs_are_released(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, grace=0.02))
        await arrived(held.here)
        await send_sigterm()
        await working

        job = await current(app, "q", "a")
        assert (None, 0, 1) == (job.run, job.attempts, held.cancelled)

    async def test_the_second_releases_at_once(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", *ids(5))
        working = asyncio.create_task(run(app, grace=3600))
        await arrived(held.here)
        await send_sigterm()
        await send_sigterm()

        report = await working

        counts = (await app.storage.counts(["q"]))["q"]
        assert (5, 0, 5) == (counts.waiting, counts.active, report.total("released"))

    async def test_the_run_of_a_def_handler_that_does_not_stop_is_released(self, app: Dibs) -> None:
        held = HeldThread()
        add(app, "q", held)
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, grace=0))
        await arrived(held.here)
        await send_sigterm()
        report = await working
        held.go.set()

        assert 0 == (await current(app, "q", "a")).attempts
        assert 1 == report.total("released")


class TestLostLease:
    """Other workers may hold the same jobs, so all runs are stopped and none is settled."""

    async def test_a_refused_renewal_stops_all_runs_and_starts_again(self, app: Dibs) -> None:
        async with faulty_storage(app) as storage:
            report, held = await self.lose(app, storage, "gone")

        assert 1 == held.cancelled
        assert 1 == report.total("lost")
        assert ["stalled", "completed"] == await event_kinds(app, "q", "a")
        assert 2 == storage.calls.count("grant")

    async def lose(self, app: Dibs, storage: FaultyStorage, how: str) -> tuple[WorkReport, Held]:
        held = Held()
        held.add(app, "q")
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, until="empty", heartbeat=0.05, lease=0.3))
        await arrived(held.here)
        held.here.clear()
        if how == "gone":
            answers = await app.storage.renew(["q"], "never granted", 1)
            storage.answer("renew", answers)
        else:
            for _ in range(100):
                storage.fail("renew", StorageUnavailable("nobody there"))
        await arrived(held.here)
        storage.succeed_again("renew")
        held.go.set()
        return await working, held
