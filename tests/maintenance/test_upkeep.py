"""The duties: bringing back what was left, removing what has expired."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dibs.errors import StorageUnavailable
from dibs.maintenance import prune as pruning
from dibs.maintenance import reap as reaping
from dibs.maintenance.prune import prune
from dibs.maintenance.reap import ReapCandidates, reap
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, HandOff, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.maintenance.stepwise import stepping
from tests.worker.workshop import Faulty


async def claimed(
    storage: Storage, number: int, retention: OutcomeRetention | None = None
) -> list[Settlement]:
    """Claim so many jobs under a lease of 10 ms, at time 0."""
    data = JobData(retention=retention)
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=str(n), data=data)) for n in range(number)], now=0)
    lease = (await storage.grant(["q"], 10, "test", now=0)).lease
    jobs = (await storage.claim("q", lease, number, now=0)).jobs
    return [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]


async def test_every_job_of_a_dead_worker_comes_back() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await claimed(storage, 5)
        await storage.counts(["q"], now=10)
        with stepping(reaping, 2):
            found = await reap(storage, "q")

        assert ["stalled"] * 5 == [one.kind for one in found]
        assert 5 == (await storage.counts(["q"]))["q"].waiting


async def test_living_workers_keep_theirs() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await claimed(storage, 5)
        await storage.counts(["q"], now=9)

        assert [] == await reap(storage, "q")


async def test_idle_queues_are_reaped_at_first_and_then_only_counted() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        suspicion = ReapCandidates(storage, ["p", "q"])
        assert ["p", "q"] == await suspicion.queues()
        assert [] == await suspicion.queues()
        [job, *_] = await claimed(storage, 2)
        assert ["q"] == await suspicion.queues()
        await storage.settle("q", [job], now=0)
        assert ["q"] == await suspicion.queues()


async def test_handed_off_runs_are_under_no_lease() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        suspicion = ReapCandidates(storage, ["q"])
        await suspicion.queues()
        [job] = await claimed(storage, 1)
        await storage.settle("q", [replace(job, action=HandOff())], now=0)

        assert [] == await suspicion.queues()


async def test_a_crowded_queue_is_reaped_rather_than_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "CROWDED", 4)
    async with open_storage("memory:", clock="manual") as storage:
        counting = Faulty(storage)
        suspicion = ReapCandidates(counting, ["p", "q"])
        await storage.settle("q", await claimed(storage, 5), now=0)
        await suspicion.queues()
        assert ["q"] == await suspicion.queues()
        assert [("counts", ["p", "q"]), ("counts", ["p"])] == counting.asked


async def test_no_queue_is_passed_over_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease without jobs goes with a reap, and a count that failed said nothing."""
    monkeypatch.setattr(reaping, "ANYWAY", 0.0)
    async with open_storage("memory:", clock="manual") as storage:
        counting = Faulty(storage)
        suspicion = ReapCandidates(counting, ["p", "q"])
        assert ["p", "q"] == await suspicion.queues()
        monkeypatch.setattr(reaping, "ANYWAY", 3600.0)
        counting.fail("counts", StorageUnavailable("nobody there"))
        with pytest.raises(StorageUnavailable):
            await suspicion.queues()
        assert ["p", "q"] == await suspicion.queues()
        assert [] == await suspicion.queues()


async def test_everything_expired_is_removed() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await storage.settle("q", await claimed(storage, 5, OutcomeRetention(completed=100)), now=0)
        await storage.counts(["q"], now=100)
        with stepping(pruning, 2):
            done = await prune(storage, "q")

        assert (5, False) == (done.outcomes, done.more)
