"""What is measured: each scenario takes an open storage and returns how many jobs a second it did.

A scenario knows only the protocol, so it measures a storage of someone else's just as well.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from benchmarks.through_the_client import enqueue_together
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Storage

#: As in the comparisons of the field: two small numbers.
PAYLOAD: Final = b'{"x":1,"y":22}'
BATCH: Final = 100
LEASE: Final = 600_000


class Scenario(Struct, frozen=True):
    """One measurement: its name, the yardstick it is held against, and how to run it."""

    name: str
    #: `put` or `take`, and how many at once.
    yardstick: str
    run: Callable[[Storage, int], Awaitable[float]]
    #: Jobs in a full run, and in a quick one.
    jobs: int
    quick: int


def requests(
    count: int, *, prefix: str = "job", priority: int = 0, delay: int | None = None
) -> list[EnqueueRequest]:
    """Return requests for so many different ids."""
    data = JobData(payload=PAYLOAD, priority=priority)
    return [EnqueueRequest(job=NewJob(id=f"{prefix}-{n:09d}", data=data, delay=delay)) for n in range(count)]


async def fill(storage: Storage, queue: str, wanted: list[EnqueueRequest]) -> None:
    """Enqueue in the largest batches."""
    for start in range(0, len(wanted), 1000):
        await storage.enqueue(queue, wanted[start : start + 1000])


async def enqueue_singly(storage: Storage, jobs: int) -> float:
    """Enqueue one job a call, each awaited."""
    wanted = requests(jobs)
    begun = time.perf_counter()
    for request in wanted:
        await storage.enqueue("singly", [request])
    return jobs / (time.perf_counter() - begun)


async def enqueue_batches(storage: Storage, jobs: int) -> float:
    """Enqueue a hundred jobs a call."""
    wanted = requests(jobs)
    begun = time.perf_counter()
    for start in range(0, jobs, BATCH):
        await storage.enqueue("batches", wanted[start : start + BATCH])
    return jobs / (time.perf_counter() - begun)


def drain(batch: int) -> Callable[[Storage, int], Awaitable[float]]:
    """Return a scenario: claim so many jobs a call and settle them with the next claim."""

    async def run(storage: Storage, jobs: int) -> float:
        await fill(storage, "drain", requests(jobs))
        return await claim_and_complete(storage, "drain", jobs, batch)

    return run


async def claim_and_complete(storage: Storage, queue: str, jobs: int, batch: int = BATCH) -> float:
    """Claim so many jobs a call under one lease, and settle them with the next claim."""
    lease = (await storage.grant([queue], LEASE, "benchmark")).lease
    settlements: list[Settlement] = []
    done = 0
    begun = time.perf_counter()
    while done < jobs:
        answer = await storage.settle_and_claim(queue, settlements, lease, batch)
        settlements = [
            Settlement(id=job.id, fence=job.run.fence, action=Complete(result=b"null"))
            for job in answer.claim.jobs
            if job.run is not None
        ]
        done += len(answer.settled)
    return done / (time.perf_counter() - begun)


async def drain_beside_backlog(storage: Storage, jobs: int) -> float:
    """Drain with a million jobs of a higher priority scheduled and a hundred times as many waiting behind."""
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
    Scenario("the same beside 50 x as many", "take, 100", drain_beside_backlog, 20_000, 2_000),
)
