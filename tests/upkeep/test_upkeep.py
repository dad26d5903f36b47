"""The duties: bringing back what was left, removing what has expired."""

from __future__ import annotations

from dibs.model.job import Data, NewJob, Retention
from dibs.model.requests import Complete, Request, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.upkeep import prune as pruning
from dibs.upkeep import reap as reaping
from dibs.upkeep.prune import prune
from dibs.upkeep.reap import reap
from tests.upkeep.stepwise import stepping


async def claimed(storage: Storage, number: int, retention: Retention | None = None) -> list[Settlement]:
    """Claim so many jobs under a lease of 10 ms, at time 0."""
    data = Data(retention=retention)
    await storage.enqueue("q", [Request(job=NewJob(id=str(n), data=data)) for n in range(number)], now=0)
    lease = (await storage.grant(["q"], 10, "test", now=0)).lease
    jobs = (await storage.claim("q", lease, number, now=0)).jobs
    return [Settlement(id=job.id, fence=job.run.fence, how=Complete()) for job in jobs if job.run]


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


async def test_everything_expired_is_removed() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await storage.settle("q", await claimed(storage, 5, Retention(completed=100)), now=0)
        await storage.counts(["q"], now=100)
        with stepping(pruning, 2):
            done = await prune(storage, "q")

        assert (5, False) == (done.outcomes, done.more)
