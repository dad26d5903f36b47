"""The probe of the capability `many_queues`: requests for several queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, Protocol, cast

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, QueueStep, Settlement
from dibs.model.results import ClaimResult
from dibs.storage.abilities import ManyQueues
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.target import Locations

TTL: Final = 60_000
#: Seconds that a blocking claim waits in a probe, and seconds for which it must wait without a change.
BLOCKING_SECONDS: Final = 20.0
QUIET_SECONDS: Final = 0.2
#: A blocking claim may end early this many times. Then the storage does not wait.
MOST_WAKE_UPS: Final = 5
QUEUES: Final = ("q", "r", "s", "t:{u}")


class ServingStorage(Storage, ManyQueues, BlockingClaims, Protocol):
    """A storage with the capabilities `many_queues` and `blocking_claim`."""


async def serves_many_queues(locations: Locations) -> bool:
    """Return whether one `serve` claims and settles in two queues, and a blocking claim waits for several."""
    async with locations.open(locations.new(), "system") as storage:
        if not hasattr(storage, "serve"):
            return False
        serving = cast("ServingStorage", storage)
        if not await serves_two_queues(serving):
            return False
        return not storage.capabilities.blocking_claim or await blocks_for_any(serving)


async def serves_two_queues(storage: ServingStorage) -> bool:
    """Return whether a `serve` claims in two queues, and the next one settles in the first of them."""
    lease = (await storage.grant(["q", "r"], TTL, "kit")).lease
    for queue in ("q", "r"):
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=queue))])
    claimed = await storage.serve([QueueStep("r", limit=1), QueueStep("q", limit=1)], lease)
    if [ids_of(step.claim) for step in claimed] != [["r"], ["q"]]:
        return False
    [step] = await storage.serve([QueueStep("r", ends_of(claimed[0].claim))], lease)
    return [result.status for result in step.settled] == ["done"] and not step.claim.jobs


async def blocks_for_any(storage: ServingStorage) -> bool:
    """Return whether a blocking claim of several queues waits, and a change of each of them ends it.

    `wake_claim` with each of the queues must end it, too, and two claims must not take the same job.
    """
    lease = (await storage.grant(QUEUES, TTL, "kit")).lease
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BLOCKING_SECONDS):
            return (
                await waits_without_changes(storage, lease)
                and all([await wakes_by_job(storage, lease, queue) for queue in QUEUES])
                and all([await ends_by_name(storage, lease, queue) for queue in QUEUES])
                and await shares_jobs(storage, lease)
                and await takes_up_to_limit(storage, lease)
            )
    return False


async def waits_without_changes(storage: ServingStorage, lease: str) -> bool:
    """Return whether blocking claims wait, apart from a few that end early."""
    for number in range(MOST_WAKE_UPS):
        claim = start_claim(storage, lease, f"quiet-{number}")
        if not (await asyncio.wait([claim], timeout=QUIET_SECONDS))[0]:
            await storage.wake_claim(QUEUES[0], f"quiet-{number}")
            return not jobs_of(await claim)
    return False


async def wakes_by_job(storage: ServingStorage, lease: str, queue: str) -> bool:
    """Return whether a job of one queue ends the claim, and the claim takes it."""
    taking = asyncio.create_task(take(storage, lease, f"job-{QUEUES.index(queue)}"))
    await asyncio.wait([taking], timeout=QUIET_SECONDS / 2)
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="woken"))])
    return await taking == {queue: ["woken"]}


async def ends_by_name(storage: ServingStorage, lease: str, queue: str) -> bool:
    claim = start_claim(storage, lease, f"named-{QUEUES.index(queue)}")
    await asyncio.wait([claim], timeout=QUIET_SECONDS / 2)
    await storage.wake_claim(queue, f"named-{QUEUES.index(queue)}")
    return not jobs_of(await claim)


async def shares_jobs(storage: ServingStorage, lease: str) -> bool:
    """Return whether two claims with the limit 2 take the four jobs of one enqueue, each job once.

    The first claim reaches its limit and must release the second one.
    """
    taking = [asyncio.create_task(take(storage, lease, f"share-{number}", 2)) for number in range(2)]
    await asyncio.wait(taking, timeout=QUIET_SECONDS / 2)
    await storage.enqueue("r", [EnqueueRequest(job=NewJob(id=id)) for id in "abcd"])
    taken = [await task for task in taking]
    return sorted(id for one in taken for id in one.get("r", ())) == list("abcd")


async def takes_up_to_limit(storage: ServingStorage, lease: str) -> bool:
    """Return whether claims with the limit 1 take one job each, without waiting, from two changed queues."""
    for queue in QUEUES[:2]:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=f"last of {queue}"))])
    taken = [await take(storage, lease, f"limit-{number}") for number in range(2)]
    return sorted(id for one in taken for ids in one.values() for id in ids) == ["last of q", "last of r"]


async def take(storage: ServingStorage, lease: str, name: str, limit: int = 1) -> dict[str, list[str]]:
    """Make blocking claims until one takes jobs, and return their ids by queue. A few may end early."""
    for number in range(1 + MOST_WAKE_UPS):
        if jobs := jobs_of(await start_claim(storage, lease, f"{name}-{number}", limit)):
            return jobs
    return {}


async def claim_any(
    storage: ServingStorage, lease: str, claim_id: str, limit: int
) -> Mapping[str, ClaimResult]:
    return await storage.claim_blocking_any(QUEUES, lease, limit, claim_id=claim_id, timeout=BLOCKING_SECONDS)


def start_claim(
    storage: ServingStorage, lease: str, claim_id: str, limit: int = 1
) -> asyncio.Task[Mapping[str, ClaimResult]]:
    return asyncio.create_task(claim_any(storage, lease, claim_id, limit))


def ids_of(claim: ClaimResult) -> list[str]:
    return [job.id for job in claim.jobs]


def jobs_of(claims: Mapping[str, ClaimResult]) -> dict[str, list[str]]:
    """Return the ids that were claimed, by queue. Queues without jobs are left out."""
    return {queue: ids_of(claim) for queue, claim in claims.items() if claim.jobs}


def ends_of(claim: ClaimResult) -> list[Settlement]:
    """Return the settlements that complete the claimed jobs."""
    return [
        Settlement(id=job.id, fence=job.run.fence, action=Complete())
        for job in claim.jobs
        if job.run is not None
    ]
