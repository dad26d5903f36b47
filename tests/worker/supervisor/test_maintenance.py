"""The regular maintenance of a supervisor: how often it asks the storage, for how many queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dibs.client.work_report import WorkReport
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.worker import messages
from dibs.worker.supervisor import maintenance
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
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


# -- The runs that workers hold: added by RunsClaimed, removed by RunsSettled ------------------------


def claimed_run(index: int, id: str = "a", *, claimed_at: int = 0) -> messages.ClaimedRun:
    return messages.ClaimedRun(index, id, 100 + index, claimed_at, 500, 1, 2, None)


def test_a_run_is_held_until_it_is_settled() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0, "a"), claimed_run(1, "b"))))
    ends = held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter(completed=1) == ends
    assert ["b"] == [held_run.run.id for held_run in held_runs.runs_of("p")]
    assert (1, 1) == (len(held_runs), held_runs.count_under("lease"))


def test_a_settled_run_is_counted_once() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0),)))
    held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter() == held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))
    assert 0 == held_runs.count_under("lease")


def test_forgotten_runs_are_under_no_lease() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0), claimed_run(1))))
    held_runs.remove_worker("p")

    assert (0, 0, []) == (len(held_runs), held_runs.count_under("lease"), held_runs.runs_of("p"))


def test_a_cancellation_applies_to_runs_claimed_before_it() -> None:
    """A run that was claimed after the storage reported the cancellation is another run of the id."""
    held_runs = HeldRuns[str]()
    held_runs.add(
        "p",
        messages.RunsClaimed(
            "q", "lease", (claimed_run(0, "a", claimed_at=5), claimed_run(1, "b", claimed_at=9))
        ),
    )
    held_runs.add("o", messages.RunsClaimed("other", "lease", (claimed_run(0, "a", claimed_at=5),)))

    assert {"p": [("q", "a", 100)]} == held_runs.take_runs_to_cancel("q", ("a", "b"), 9)
    assert {} == held_runs.take_runs_to_cancel("q", ("a", "b"), 9), "each run is cancelled once"


def test_the_deadline_is_the_timeout_or_the_extension_by_the_process() -> None:
    run = HeldRun("q", "lease", claimed_run(0))

    assert None is run.deadline(0.0)
    assert 10.5 == run.deadline(10.0)
    run.stop_deadline = 12.0
    assert 12.0 == run.deadline(10.0)
    run.overran = True
    assert None is run.deadline(10.0)


def test_a_run_is_found_by_its_index_and_fence() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0),)))

    assert "a" == getattr(held_runs.find_run("p", 0, 100), "run", claimed_run(9)).id
    assert None is held_runs.find_run("p", 0, 99)
    assert None is held_runs.find_run("o", 0, 100)
