"""The regular maintenance of a supervisor: how often it asks the storage, for how many queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dibs.client.work_report import WorkReport
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.worker.supervisor import maintenance
from dibs.worker.supervisor.maintenance import IDLE_QUEUES, Maintenance
from tests.worker.faulty_storage import FaultyStorage

QUEUES = tuple(f"q{n}" for n in range(100))


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    async with open_storage("memory:") as storage:
        yield storage


@asynccontextmanager
async def maintained(storage: FaultyStorage, report: WorkReport) -> AsyncIterator[None]:
    loops = Maintenance(storage, QUEUES, report, lease=15.0, heartbeat=5.0).loops()
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def asked_for(storage: FaultyStorage, verb: str) -> list[str]:
    return [queue for asked, queue in storage.asked if asked == verb]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the maintenance. Each pause returns at once."""
    taken: list[float] = []
    sleep: Callable[[float], object] = asyncio.sleep

    async def counted(seconds: float) -> None:
        taken.append(seconds)
        await sleep(0 if len(taken) < 50 else 3600)  # type: ignore[misc]

    monkeypatch.setattr(asyncio, "sleep", counted)
    return taken


async def test_idle_queues_are_counted_rarely(storage: Storage, pauses: list[float]) -> None:
    """Queues without runs are counted every 10 s: the lease of a run that begins later lasts longer."""
    counting = FaultyStorage(storage)
    async with maintained(counting, WorkReport()):
        await counting.until(lambda: counting.calls.count("counts") > 3)

    reaps = [pause for pause in pauses if pause != maintenance.PRUNE_EVERY]
    assert [maintenance.REAP_EVERY, 10.0, 10.0] == reaps[:3]


async def test_queues_with_runs_under_leases_are_counted_often(storage: Storage, pauses: list[float]) -> None:
    await storage.grant(QUEUES, 60_000, "other")
    lease = (await storage.grant(["q7"], 60_000, "other")).lease
    await storage.enqueue("q7", [EnqueueRequest(job=NewJob(id="a"))])
    await storage.claim("q7", lease, 1)
    counting = FaultyStorage(storage)
    async with maintained(counting, WorkReport()):
        await counting.until(lambda: counting.calls.count("counts") > 3)

    assert {maintenance.REAP_EVERY, maintenance.PRUNE_EVERY} == set(pauses)
    assert asked_for(counting, "reap").count("q7") >= 3


async def test_a_prune_takes_the_active_queues_and_a_few_others(
    storage: Storage, pauses: list[float]
) -> None:
    counting, report = FaultyStorage(storage), WorkReport()
    report.queue("q7").claimed = 1
    async with maintained(counting, report):
        await counting.until(lambda: counting.calls.count("prune") > 3 * IDLE_QUEUES)

    pruned = asked_for(counting, "prune")
    assert "q7" == pruned[0]
    assert 2 * IDLE_QUEUES < len(set(pruned[: 3 * IDLE_QUEUES + 1]))
