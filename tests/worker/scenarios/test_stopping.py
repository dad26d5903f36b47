"""Runs that take too long, that somebody asks to stop, and workers that end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from dibs.client.app import Dibs
from dibs.client.calls.current_job import CurrentJob, current_job
from dibs.errors import StorageUnavailable
from dibs.worker import WorkReport, run
from tests.worker.workshop import Faulty, add, counted, current, faulty, ids, kinds, outcome, put


class Held:
    """An `async def` handler that says it is there, and stays until it is let go."""

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
    """The same as a `def` handler."""

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


async def ask_to_stop() -> None:
    """Send a signal, and return when the loop has heard it."""
    os.kill(os.getpid(), signal.SIGTERM)
    # A thread wakes the loop by the same pipe as a signal does, so it comes behind it.
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
        assert ["timed_out", "timed_out", "failed"] == await kinds(app, "q", "a")
        assert (3, "failed", 2, 0) == (held.cancelled, failed.kind, failed.timeouts, failed.retries)
        assert failed.error is not None
        assert (
            "TimeoutError",
            "took longer than its timeout of 0.02 s",
        ) == (failed.error.type, failed.error.message)
        assert "__call__" in failed.error.traceback
        assert 2 == report.total("timed_out")

    async def test_what_finishes_nevertheless_counts(self, app: Dibs) -> None:
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

    async def test_a_def_handler_loses_its_fence_and_its_room(self, app: Dibs) -> None:
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
        await counted(app, "short", "failed")
        long.go.set()
        await working

        assert ("completed", 1) == ((await outcome(app, "long", "a")).kind, short.cancelled)

    async def test_without_a_timeout_nothing_is_stopped(self, app: Dibs) -> None:
        add(app, "q", lambda: current_job().deadline, timeout=None)
        await put(app, "q", "a")
        await run(app, until="empty")

        assert b"null" == (await outcome(app, "q", "a")).result


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

    async def test_others_go_on(self, app: Dibs) -> None:
        held, other = Held(), Held()
        held.add(app, "q")
        other.add(app, "other")
        await put(app, "q", "a")
        await put(app, "other", "a")
        working = asyncio.create_task(run(app, until="empty", heartbeat=0.02))
        await arrived(held.here)
        await arrived(other.here)
        await app.storage.cancel("q", ["a"], running=True)
        await counted(app, "q", "cancelled")
        other.go.set()
        await working

        assert "completed" == (await outcome(app, "other", "a")).kind


class TestSignals:
    async def test_the_first_waits_for_what_runs_and_claims_no_more(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q", size=100)
        await put(app, "q", "a", "b")
        working = asyncio.create_task(run(app))
        await arrived(held.here)
        await ask_to_stop()
        held.go.set()

        report = await working

        assert "completed" == (await outcome(app, "q", "a")).kind
        assert 0 == (await current(app, "q", "b")).attempts
        assert (1, 0, 0) == (report.total("completed"), report.total("released"), held.cancelled)

    async def test_after_the_grace_the_rest_is_released(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, grace=0.02))
        await arrived(held.here)
        await ask_to_stop()
        await working

        job = await current(app, "q", "a")
        assert (None, 0, 1) == (job.run, job.attempts, held.cancelled)

    async def test_the_second_releases_at_once(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", *ids(5))
        working = asyncio.create_task(run(app, grace=3600))
        await arrived(held.here)
        await ask_to_stop()
        await ask_to_stop()

        report = await working

        counts = (await app.storage.counts(["q"]))["q"]
        assert (5, 0, 5) == (counts.waiting, counts.active, report.total("released"))

    async def test_a_def_handler_that_goes_on_is_released_all_the_same(self, app: Dibs) -> None:
        held = HeldThread()
        add(app, "q", held)
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, grace=0))
        await arrived(held.here)
        await ask_to_stop()
        report = await working
        held.go.set()

        assert 0 == (await current(app, "q", "a")).attempts
        assert 1 == report.total("released")

    async def test_afterwards_signals_are_what_they_were(self, app: Dibs) -> None:
        before = signal.getsignal(signal.SIGTERM)
        add(app, "q", print)
        await run(app, until="empty")

        assert signal.getsignal(signal.SIGTERM) is before

    async def test_a_call_that_is_cancelled_releases_at_once(self, app: Dibs) -> None:
        held = Held()
        held.add(app, "q")
        await put(app, "q", "a")
        working = asyncio.create_task(run(app))
        await arrived(held.here)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

        assert 0 == (await current(app, "q", "a")).attempts


class TestLostLease:
    """Others may hold our jobs: nothing that runs may go on, or be settled."""

    async def test_a_refused_renewal_stops_everything_and_starts_anew(self, app: Dibs) -> None:
        async with faulty(app) as storage:
            report, held = await self.lose(app, storage, "gone")

        assert 1 == held.cancelled
        assert 1 == report.total("lost")
        assert ["stalled", "completed"] == await kinds(app, "q", "a")
        assert 2 == storage.calls.count("grant")

    async def test_a_storage_that_does_not_answer_is_as_bad(self, app: Dibs) -> None:
        async with faulty(app) as storage:
            report, held = await self.lose(app, storage, "silent")

        assert 1 == held.cancelled
        assert 1 == report.total("lost")
        assert ["stalled", "completed"] == await kinds(app, "q", "a")

    async def lose(self, app: Dibs, storage: Faulty, how: str) -> tuple[WorkReport, Held]:
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
        storage.forgive("renew")
        held.go.set()
        return await working, held
