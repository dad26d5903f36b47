"""The scenarios. Each one takes an open storage and returns jobs a second.

Scenarios use only the storage protocol, so they can measure any storage.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import frozen

from benchmarks.client_calls import enqueue_together
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Storage

#: Two small numbers, as in the benchmarks of other queues.
PAYLOAD: Final = b'{"x":1,"y":22}'
BATCH: Final = 100
LEASE: Final = 600_000


@frozen
class Scenario:
    """A measurement, and the baseline that it is compared with."""

    name: str
    #: `put` or `take`, and the jobs of one call: "put, 100".
    baseline: str
    run: Callable[[Storage, int], Awaitable[float]]
    #: Jobs of a full run.
    jobs: int
    #: Jobs with --quick.
    quick_jobs: int


def requests(
    count: int, *, prefix: str = "job", priority: int = 0, delay: int | None = None
) -> list[EnqueueRequest]:
    """Return `count` requests with different ids."""
    data = JobData(payload=PAYLOAD, priority=priority)
    return [EnqueueRequest(job=NewJob(id=f"{prefix}-{n:09d}", data=data, delay=delay)) for n in range(count)]


async def fill(storage: Storage, queue: str, jobs: list[EnqueueRequest]) -> None:
    """Enqueue in batches of 1000, the largest that a storage accepts."""
    for start in range(0, len(jobs), 1000):
        await storage.enqueue(queue, jobs[start : start + 1000])


async def enqueue_singly(storage: Storage, jobs: int) -> float:
    """Enqueue one job a call, and wait for each call."""
    wanted = requests(jobs)
    started = time.perf_counter()
    for request in wanted:
        await storage.enqueue("singly", [request])
    return jobs / (time.perf_counter() - started)


async def enqueue_batches(storage: Storage, jobs: int) -> float:
    """Enqueue 100 jobs a call."""
    wanted = requests(jobs)
    started = time.perf_counter()
    for start in range(0, jobs, BATCH):
        await storage.enqueue("batches", wanted[start : start + BATCH])
    return jobs / (time.perf_counter() - started)


def drain(batch: int) -> Callable[[Storage, int], Awaitable[float]]:
    """Return a scenario that claims `batch` jobs a call and settles them with the next claim."""

    async def run(storage: Storage, jobs: int) -> float:
        await fill(storage, "drain", requests(jobs))
        return await claim_and_complete(storage, "drain", jobs, batch)

    return run


async def claim_and_complete(storage: Storage, queue: str, jobs: int, batch: int = BATCH) -> float:
    """Claim `batch` jobs a call and settle them with the next claim. Return the jobs settled a second."""
    lease = (await storage.grant([queue], LEASE, "benchmark")).lease
    settlements: list[Settlement] = []
    settled = 0
    started = time.perf_counter()
    while settled < jobs:
        result = await storage.settle_and_claim(queue, settlements, lease, batch)
        settlements = [
            Settlement(id=job.id, fence=job.run.fence, action=Complete(result=b"null"))
            for job in result.claim.jobs
            if job.run is not None
        ]
        settled += len(result.settled)
    return settled / (time.perf_counter() - started)


async def drain_with_backlog(storage: Storage, jobs: int) -> float:
    """Drain `jobs` out of a backlog of 50 times as many, with as many again scheduled for the next day.

    The scheduled jobs have a higher priority.
    """
    await fill(storage, "backlog", requests(jobs * 50, prefix="later", priority=9, delay=86_400_000))
    await fill(storage, "backlog", requests(jobs * 50))
    return await claim_and_complete(storage, "backlog", jobs)


SCENARIOS: Final = (
    Scenario("enqueue, one a call", "put, 1", enqueue_singly, 20_000, 2_000),
    Scenario("enqueue, 100 a call", "put, 100", enqueue_batches, 200_000, 20_000),
    Scenario("enqueue, 100 callers", "put, 100", enqueue_together, 20_000, 4_000),
    Scenario("claim + complete, one a call", "take, 1", drain(1), 10_000, 1_000),
    Scenario("claim + complete, 10 a call", "take, 10", drain(10), 50_000, 5_000),
    Scenario("claim + complete, 100 a call", "take, 100", drain(100), 100_000, 10_000),
    Scenario("the same with a backlog of 50 x", "take, 100", drain_with_backlog, 20_000, 2_000),
)
