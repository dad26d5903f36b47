"""The wait for wake-ups of several queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dibs.app import Dibs
from dibs.model.results import WaitResult
from dibs.worker.dispatch.listener import RESTART_DELAY, Listener
from dibs.worker.dispatch.queue_state import QueueState
from tests.worker.faulty_storage import FaultyStorage
from tests.worker.jobs import add, put


@pytest.fixture
async def app() -> AsyncIterator[Dibs]:
    async with Dibs("memory:") as app:
        yield app


class Listening:
    """A listener, its idle queues, and the claims that make them idle."""

    def __init__(self, app: Dibs, storage: FaultyStorage, lease: str) -> None:
        self._app, self._storage, self._lease = app, storage, lease
        self.wakeups = 0
        self.woken = asyncio.Event()
        self.listener = Listener(storage, 3600.0, self._wake)

    def _wake(self) -> None:
        self.wakeups += 1
        self.woken.set()

    async def idle_queue(self, name: str) -> QueueState:
        add(self._app, name, lambda: None)
        queue = QueueState(self._app.handlers[name], 10, 100, poll=3600.0)
        await self.claim(queue)
        queue.readiness.active_until = 0.0
        return queue

    async def claim(self, queue: QueueState) -> None:
        queue.readiness.update_after_claim(await self._app.storage.claim(queue.name, self._lease, 10), 10)

    def listen_soon(self, *queues: QueueState) -> None:
        self.listener.update(queues)
        self.listener.listen()

    async def listen(self, *queues: QueueState) -> None:
        """Listen, and return when the wait has begun."""
        self.listen_soon(*queues)
        async with asyncio.timeout(60):
            await self._storage.until(
                lambda: ("wait", tuple(one.name for one in queues)) in self._storage.asked
            )

    async def until_woken(self) -> None:
        async with asyncio.timeout(60):
            await self.woken.wait()


@asynccontextmanager
async def listening(app: Dibs, *names: str) -> AsyncIterator[tuple[Listening, FaultyStorage]]:
    storage = FaultyStorage(app.storage)
    granted = await app.storage.grant(names, 3_600_000, "me")
    listening = Listening(app, storage, granted.lease)
    try:
        yield listening, storage
    finally:
        listening.listener.close()


@pytest.mark.parametrize("woken", ["a", "b"])
async def test_a_job_wakes_only_its_queue(app: Dibs, woken: str) -> None:
    async with listening(app, "a", "b") as (waits, _):
        queues = [await waits.idle_queue("a"), await waits.idle_queue("b")]
        await waits.listen(*queues)
        await put(app, woken, "job")
        await waits.until_woken()

    assert [woken] == [queue.name for queue in queues if queue.readiness.ready]


async def test_a_wakeup_without_a_change_wakes_all_queues(app: Dibs) -> None:
    """The cause of the wake-up is unknown: any of the queues may have a job."""
    async with listening(app, "a", "b") as (waits, storage):
        queues = [await waits.idle_queue("a"), await waits.idle_queue("b")]
        same = {queue.name: queue.readiness.token for queue in queues}
        storage.answer("wait", WaitResult(woken=True, since=same))
        waits.listen_soon(*queues)
        await waits.until_woken()

    assert ["a", "b"] == [queue.name for queue in queues if queue.readiness.ready]


async def test_a_change_that_a_later_claim_has_seen_wakes_nobody(app: Dibs) -> None:
    async with listening(app, "a") as (waits, storage):
        queue = await waits.idle_queue("a")
        await waits.listen(queue)
        await put(app, "a", "job")
        # The storage in memory answers both calls before the wait goes on.
        await waits.claim(queue)
        await storage.until(lambda: storage.calls.count("wait") == 2)

        assert (0, False) == (waits.wakeups, queue.readiness.ready)


async def test_a_queue_that_becomes_idle_joins_the_wait(app: Dibs) -> None:
    async with listening(app, "a", "b") as (waits, _):
        queues = [await waits.idle_queue("a"), await waits.idle_queue("b")]
        await waits.listen(queues[0])
        await waits.listen(*queues)
        await put(app, "b", "job")
        await waits.until_woken()

    assert queues[1].readiness.ready


async def test_queues_that_become_idle_together_restart_the_wait_once(app: Dibs) -> None:
    async with listening(app, "a", "b", "c") as (waits, storage):
        a, b, c = [await waits.idle_queue(name) for name in "abc"]
        await waits.listen(a)
        waits.listen_soon(a, b)
        await waits.listen(a, b, c)
        await asyncio.sleep(2 * RESTART_DELAY)

    assert [("a",), ("a", "b", "c")] == [names for verb, names in storage.asked if verb == "wait"]


async def test_a_queue_that_runs_out_of_jobs_does_not_restart_the_wait_of_all_others(app: Dibs) -> None:
    """Each wait checks all its queues, so a restart for each queue would cost the square of their number."""
    names = [f"q{n:02}" for n in range(40)]
    async with listening(app, *names) as (waits, storage):
        for name in names:
            queue = await waits.idle_queue(name)
            queue.readiness.active_until = float("inf")
            waits.listen_soon(queue)
            await asyncio.sleep(1.5 * RESTART_DELAY)
        checked = [len(queues) for verb, queues in storage.asked if verb == "wait"]
        covered = {queue.name for queue in waits.listener.queues}

    assert set(names) == covered
    assert sum(checked) < 400, "with a restart for each queue it would be 800"
