"""How a program stops its worker: by signals beside its own handlers, by `app.stop`, by cancellation."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from dibs.app import Dibs
from dibs.worker import WorkReport
from tests.worker.jobs import add, current, outcome, put

TIMEOUT = 30.0


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """Restore the signal handlers after a test that sets its own."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def send(number: signal.Signals) -> None:
    """Send a signal to this process, and return when the loop has handled it."""
    os.kill(os.getpid(), number)
    await asyncio.to_thread(int)
    for _ in range(20):
        await asyncio.sleep(0)


class HeldJob:
    """A job `a` in a queue, whose handler waits for `go`."""

    def __init__(self, app: Dibs, queue: str) -> None:
        self.app, self.queue = app, queue
        self.here, self.go = asyncio.Event(), asyncio.Event()

        async def handler() -> None:
            self.here.set()
            await self.go.wait()

        add(app, queue, handler)

    @asynccontextmanager
    async def running(self, **options: object) -> AsyncIterator[asyncio.Task[WorkReport]]:
        await put(self.app, self.queue, "a")
        task = asyncio.create_task(self.app.work([self.queue], **options))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(TIMEOUT):
                await self.here.wait()
                yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def was_released(self) -> bool:
        job = await current(self.app, self.queue, "a")
        return (job.run, job.attempts) == (None, 0)

    async def completed(self) -> bool:
        return (await outcome(self.app, self.queue, "a")).kind == "completed"


class TestSignals:
    async def test_a_handler_of_the_loop_works_afterwards(self, app: Dibs) -> None:
        received = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, received.set)
        add(app, "q", print)
        await app.work(until="empty")
        await send(signal.SIGTERM)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

        assert received.is_set()

    async def test_a_handler_of_the_program_works_afterwards(self, app: Dibs) -> None:
        received: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
        job = HeldJob(app, "q")
        async with job.running() as task:
            await send(signal.SIGTERM)
            job.go.set()
            await task

        assert [] == received, "while the worker runs, the signal is for the worker"
        await send(signal.SIGTERM)
        assert [signal.SIGTERM] == received

    async def test_two_workers_of_a_loop_both_have_their_grace(self, app: Dibs) -> None:
        """The worker that ends first leaves the signals to the other."""
        first, second = HeldJob(app, "first"), HeldJob(app, "second")
        async with second.running() as working, first.running(until="empty") as ended:
            first.go.set()
            await ended
            await send(signal.SIGTERM)
            second.go.set()
            await working

        assert await second.completed()

    async def test_one_signal_stops_two_workers(self, app: Dibs) -> None:
        first, second = HeldJob(app, "first"), HeldJob(app, "second")
        async with first.running() as one, second.running() as two:
            await send(signal.SIGTERM)
            for job in (first, second):
                job.go.set()
            await asyncio.gather(one, two)

        assert await first.completed()
        assert await second.completed()

    async def test_sighup_waits_for_running_jobs(self, app: Dibs) -> None:
        # Under nohup, the tests would ignore it.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        job = HeldJob(app, "q")
        async with job.running() as task:
            await send(signal.SIGHUP)
            job.go.set()
            await task

        assert await job.completed()

    async def test_sighup_is_left_to_a_program_that_uses_it(self, app: Dibs) -> None:
        received: list[int] = []
        signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
        job = HeldJob(app, "q")
        async with job.running() as task:
            await send(signal.SIGHUP)

            assert [signal.SIGHUP] == received
            assert not task.done()

    async def test_signals_can_be_left_to_the_program(self, app: Dibs) -> None:
        signal.signal(signal.SIGTERM, lambda *_: app.stop())
        job = HeldJob(app, "q")
        async with job.running(handle_signals=False) as task:
            await send(signal.SIGTERM)
            await send(signal.SIGTERM)
            job.go.set()
            await task

        assert await job.completed(), "unlike a second signal, a second stop() changes nothing"


class TestStop:
    async def test_a_thread_stops_the_worker_which_waits_for_its_jobs(self, app: Dibs) -> None:
        job = HeldJob(app, "q")
        async with job.running() as task:
            await asyncio.to_thread(app.stop)
            job.go.set()
            await task

        assert await job.completed()

    async def test_its_grace_replaces_that_of_the_worker(self, app: Dibs) -> None:
        job = HeldJob(app, "q")
        async with job.running(grace=3600) as task:
            app.stop(grace=0.01)
            await task

        assert await job.was_released()

    async def test_a_later_call_shortens_the_grace(self, app: Dibs) -> None:
        job = HeldJob(app, "q")
        async with job.running(grace=3600) as task:
            app.stop()
            await asyncio.sleep(0)
            app.stop(grace=0)
            await task

        assert await job.was_released()

    async def test_a_later_call_does_not_extend_the_grace(self, app: Dibs) -> None:
        job = HeldJob(app, "q")
        async with job.running() as task:
            app.stop(grace=0.05)
            await asyncio.sleep(0)
            app.stop(grace=3600)
            await task

        assert await job.was_released()

    async def test_without_a_worker_it_does_nothing(self, app: Dibs) -> None:
        add(app, "q", print)
        app.stop()
        report = await app.work(until="empty")
        app.stop()

        assert 0 == report.total("claimed")

    def test_a_blocking_worker_is_stopped_by_a_thread(self) -> None:
        app = Dibs("memory:")
        began = threading.Event()

        def handler() -> None:
            began.set()

        add(app, "q", handler)
        app.queue("q").sync.enqueue([], id="a")

        def stop() -> None:
            began.wait(TIMEOUT)
            app.sync.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        app.sync.work(["q"])
        thread.join()
        app.sync.close()


async def test_a_handler_that_swallows_its_cancellation_is_closed_after_the_grace(app: Dibs) -> None:
    """The handler is closed before its job is released: after that, another worker may run the job."""
    ends: list[str] = []
    here = asyncio.Event()

    async def deaf() -> None:
        here.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
            except GeneratorExit:
                ends.append("closed")
                raise

    add(app, "q", deaf)
    await put(app, "q", "a")
    task = asyncio.create_task(app.work(grace=0))
    await here.wait()
    app.stop()
    report = await task

    assert (["cancelled", "closed"], 1) == (ends, report.total("released"))
    assert (await current(app, "q", "a")).run is None
    await asyncio.sleep(0)
    assert {asyncio.current_task()} == asyncio.all_tasks(), "asyncio.run would wait for the handler"


async def test_cancelling_the_worker_logs_no_error(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    job = HeldJob(app, "q")
    with caplog.at_level(logging.INFO):
        async with job.running() as task:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    assert await job.was_released()
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]
