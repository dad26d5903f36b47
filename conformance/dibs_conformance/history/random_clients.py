"""Clients that make random calls on few ids, and a drain that completes all jobs at the end.

Times come from the storage's own clock. This module does not check answers; the history checker does later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import ClaimResult
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.history.queue_calls import UNLIMITED, QueueCalls

QUEUE = "q"
FAILED = QUEUE + FAIL_SUFFIX
#: Few ids, so that clients meet. Other ids are used by one client only.
SHARED_IDS = ("a", "b", "c")
#: After this number of calls a client imports under the next id. All clients use the same sequence of ids.
CALLS_PER_MET_ID = 5
#: In ms: the lifetimes of a lease that expires during the run, and of a lease that does not.
SHORT_TTL, LONG_TTL = 30, 600_000
#: Seconds between two polls of a drain, and until the drain gives up.
POLL_SECONDS, DRAIN_TIMEOUT = 0.05, 60.0

UPDATE_ONLY = Update(create=False)
ACTIONS: tuple[SettleAction, ...] = (
    *(Complete(result=b"1"), Complete(result=b"2"), Complete()) * 2,
    Fail(error=Error(type="Oops")),
    RetryLater(),
    RetryLater(delay=10),
    Release(),
    Release(delay=5),
    HandOff(),
)


class RandomClient:
    """One client, with its leases and its latest runs."""

    def __init__(self, storage: Storage, random: Random, name: str) -> None:
        self._storage, self._random, self._name = storage, random, name
        self._leases: list[str] = []
        self._runs: list[tuple[str, int]] = []
        self._new_ids = 0
        self._queue_calls = QueueCalls(storage, random, QUEUE)
        #: Number of calls so far, from which `_met_id` is made.
        self._calls = 0

    async def run(self, calls: int) -> None:
        """Make this number of random calls, and then drop all leases."""
        await self.grant()
        for _ in range(calls):
            self._calls += 1
            await self._random.choice(CALLS)(self)
            # A storage that never awaits would not let other clients run.
            await asyncio.sleep(0)
        for lease in self._leases:
            await self._storage.drop([QUEUE], lease, 1000)

    async def grant(self) -> None:
        ttl = self._random.choice((SHORT_TTL, LONG_TTL))
        self._leases.append((await self._storage.grant([QUEUE, FAILED], ttl, self._name)).lease)

    def _lease(self) -> str:
        return self._random.choice(self._leases[-3:])

    async def enqueue(self) -> None:
        await self._storage.enqueue(QUEUE, [self._request() for _ in range(self._random.choice((1, 1, 3)))])

    def _request(self) -> EnqueueRequest:
        random = self._random
        self._new_ids += 1
        own_id = f"{self._name}-{self._new_ids}"
        id = random.choice((*SHARED_IDS, *SHARED_IDS, own_id, self._met_id()))
        data = JobData(
            payload=str(random.randrange(1000)).encode(),
            priority=random.choice((0, 0, 1)),
            key=random.choice((None, "k", "m")),
        )
        on_conflict = random.choice(
            (Update(), Update(), Update(data=False), Update(run_at="later"), Reject(), UPDATE_ONLY)
        )
        if on_conflict is UPDATE_ONLY:
            data = JobData()
        key = random.choice((None, None, f"k{random.randrange(50)}"))
        job = NewJob(id=id, data=data, delay=random.choice((None, None, None, 5)))
        return EnqueueRequest(job=job, on_conflict=on_conflict, request_key=key)

    async def claim(self) -> None:
        lease, limit = self._lease(), self._random.choice((1, 3, 10))
        self._keep_runs(await self._storage.claim(QUEUE, lease, limit))

    async def claim_blocking_briefly(self) -> None:
        """Make a short blocking claim, if the storage supports it."""
        lease, limit, seconds = self._lease(), self._random.choice((1, 3)), self._random.choice((0.001, 0.02))
        if self._storage.capabilities.blocking_claim:
            self._new_ids += 1
            claim_id = f"{self._name}-{self._new_ids}"
            storage = cast("BlockingClaims", self._storage)
            self._keep_runs(
                await storage.claim_blocking(QUEUE, lease, limit, claim_id=claim_id, timeout=seconds)
            )

    def _keep_runs(self, claim: ClaimResult) -> None:
        self._runs = [*self._runs, *((job.id, job.run.fence) for job in claim.jobs if job.run)][-20:]

    def _settlements(self) -> list[Settlement]:
        """Return settlements of some runs, mostly active ones, sometimes of runs settled before."""
        random = self._random
        runs = random.sample(self._runs, min(len(self._runs), random.choice((1, 2, 5))))
        for run in runs:
            if random.random() < 0.8:
                self._runs.remove(run)
        return [Settlement(id=id, fence=fence, action=random.choice(ACTIONS)) for id, fence in runs]

    async def settle(self) -> None:
        await self._storage.settle(QUEUE, self._settlements())

    async def settle_beside_drop(self) -> None:
        """Settle new runs while their lease is dropped and their jobs are claimed again."""
        lease = (await self._storage.grant([QUEUE], LONG_TTL, self._name)).lease
        claim = await self._storage.claim(QUEUE, lease, 2)
        runs = [(job.id, job.run.fence) for job in claim.jobs if job.run]
        settlements = [Settlement(id=id, fence=fence, action=Complete()) for id, fence in runs]
        await asyncio.gather(self._storage.settle(QUEUE, settlements), self._drop_and_claim(lease))

    async def _drop_and_claim(self, lease: str) -> None:
        await self._storage.drop([QUEUE], lease, 10)
        self._keep_runs(await self._storage.claim(QUEUE, self._leases[0], 10))

    async def settle_and_claim(self) -> None:
        lease, limit = self._lease(), self._random.choice((1, 5))
        self._keep_runs(
            (await self._storage.settle_and_claim(QUEUE, self._settlements(), lease, limit)).claim
        )

    async def renew(self) -> None:
        await self._storage.renew([QUEUE, FAILED], self._lease(), self._random.choice((SHORT_TTL, LONG_TTL)))

    async def report(self) -> None:
        """Report a memo, sometimes an empty one, on one of the latest runs."""
        if self._runs:
            id, fence = self._random.choice(self._runs)
            memo = self._random.choice((b"", str(self._random.randrange(1000)).encode()))
            await self._storage.report(QUEUE, id, fence, None, memo)

    async def reap(self) -> None:
        await self._storage.reap(QUEUE, 10)

    async def drop(self) -> None:
        await self._storage.drop([QUEUE], self._lease(), 10)

    async def cancel(self) -> None:
        await self._storage.cancel(
            QUEUE, [self._random.choice(SHARED_IDS)], running=self._random.random() < 0.5
        )

    async def read(self) -> None:
        await self._storage.get(QUEUE, SHARED_IDS)

    def _met_id(self) -> str:
        """Return a new id that all clients use at about the same time, so that an import meets an enqueue."""
        return f"m{self._calls // CALLS_PER_MET_ID}"

    async def import_job(self) -> None:
        await self._queue_calls.import_job(self._met_id())

    async def call_on_queue(self) -> None:
        await self._random.choice(QUEUE_CALLS)(self._queue_calls)


QUEUE_CALLS: tuple[Callable[[QueueCalls], Awaitable[None]], ...] = (
    *(QueueCalls.configure,) * 4,
    *(QueueCalls.prune,) * 2,
    *(QueueCalls.read_log,) * 3,
    QueueCalls.list_ids,
    QueueCalls.export,
    QueueCalls.export_parts,
    QueueCalls.counts,
)

CALLS: tuple[Callable[[RandomClient], Awaitable[None]], ...] = (
    *(RandomClient.enqueue,) * 6,
    *(RandomClient.claim,) * 5,
    RandomClient.claim_blocking_briefly,
    *(RandomClient.settle,) * 5,
    *(RandomClient.settle_and_claim,) * 2,
    *(RandomClient.reap,) * 2,
    *(RandomClient.report,) * 2,
    RandomClient.renew,
    RandomClient.grant,
    RandomClient.drop,
    RandomClient.settle_beside_drop,
    RandomClient.cancel,
    RandomClient.read,
    *(RandomClient.import_job,) * 2,
    *(RandomClient.call_on_queue,) * 7,
)


async def drain(storage: Storage) -> bool:
    """Work until the queues are empty. Return False if jobs remain after `DRAIN_TIMEOUT` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_TIMEOUT
    lease = (await storage.grant([QUEUE, FAILED], LONG_TTL, "drain")).lease
    if storage.capabilities.limits:
        await storage.configure(QUEUE, UNLIMITED)
    while loop.time() < deadline:
        for queue in (QUEUE, FAILED):
            await storage.reap(queue, 100)
            await complete_due(storage, queue, lease)
        await finish_handed_off(storage)
        counts = await storage.counts([QUEUE, FAILED])
        if not any(count.waiting or count.active or count.blocked for count in counts.values()):
            return True
        await storage.wait([QUEUE, FAILED], timeout=POLL_SECONDS)
    return False


async def complete_due(storage: Storage, queue: str, lease: str) -> None:
    """Claim and complete the due jobs."""
    jobs = (await storage.claim(queue, lease, 1000)).jobs
    deadline = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
    await storage.settle(queue, deadline)


async def finish_handed_off(storage: Storage) -> None:
    for id, slot in (await storage.list(QUEUE, "handed_off", limit=1000)).items:
        if slot.current is not None:
            await storage.finish(QUEUE, id, Complete(), slot.current.revision)
