"""One queue of a storage by its protocol, with a clock that stands where the test puts it."""

from __future__ import annotations

from typing import Any, Final

from dibs.model.job import Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import EnqueueRequest, OnConflict, SettleAction, Settlement, Update
from dibs.model.results import EnqueueResult, ReapedJob, SettleResult
from dibs.storage.protocol import Storage

START: Final = 1_900_000_000_000
LEASE: Final = 10_000
DATA: Final = frozenset(JobData.__struct_fields__)


class Clerk:
    """Enqueues, claims and settles at `now`, under one lease unless another is named."""

    def __init__(self, storage: Storage, queue: str = "q") -> None:
        self.storage = storage
        self.queue = queue
        self.now = START
        self._lease = ""

    async def put(
        self, id: str = "a", how: OnConflict | None = None, *, key: str | None = None, **words: Any
    ) -> EnqueueResult:
        """Enqueue one job: words of its data, and run_at or delay."""
        data = JobData(**{name: words.pop(name) for name in DATA & words.keys()})
        request = EnqueueRequest(job=NewJob(id=id, data=data, **words), on_conflict=how or Update(), request_key=key)
        return (await self.storage.enqueue(self.queue, [request], now=self.now))[0]

    async def lease(self, ttl: int = LEASE) -> str:
        """Grant a new lease, which is the one to claim under from now on."""
        self._lease = (await self.storage.grant([self.queue], ttl, "clerk", now=self.now)).lease
        return self._lease

    async def claim(self, limit: int = 100, lease: str | None = None) -> list[Job]:
        """Claim what is due."""
        under = lease or self._lease or await self.lease()
        answer = await self.storage.claim(self.queue, under, limit, now=self.now)
        assert not answer.lost
        return list(answer.jobs)

    async def take(self, lease: str | None = None) -> Job:
        """Claim the one job that is due."""
        [job] = await self.claim(1, lease)
        return job

    async def settle(self, job: Job, how: SettleAction) -> SettleResult:
        """Settle a run by its fence."""
        settlement = Settlement(id=job.id, fence=fence_of(job), action=how)
        return (await self.storage.settle(self.queue, [settlement], now=self.now))[0]

    async def stall(self, id: str = "a") -> Job:
        """Claim a job under a lease of its own, let that expire, and reap. The old claim is returned."""
        kept, lease = self._lease, await self.lease(1)
        self._lease = kept
        job = await self.take(lease)
        assert id == job.id
        self.now += 1
        await self.reap()
        return job

    async def reap(self, limit: int = 100) -> list[ReapedJob]:
        return list(await self.storage.reap(self.queue, limit, now=self.now))

    async def renews(self, lease: str, ttl: int = LEASE) -> bool:
        """Tell whether a heartbeat finds the lease alive."""
        return (await self.storage.renew([self.queue], lease, ttl, now=self.now))[self.queue].alive

    async def claims_nothing(self, lease: str) -> bool:
        """Tell whether a claim under the lease is told that it is lost."""
        return (await self.storage.claim(self.queue, lease, 1, now=self.now)).lost

    async def cancel(self, id: str = "a", *, running: bool = False) -> str:
        return (await self.storage.cancel(self.queue, [id], running=running, now=self.now))[0]

    async def slot(self, id: str = "a") -> Slot:
        return (await self.storage.get(self.queue, [id], now=self.now))[0]

    async def current(self, id: str = "a") -> Job:
        job = (await self.slot(id)).current
        assert job is not None, f"{id} is not live"
        return job

    async def outcome(self, id: str = "a") -> Outcome:
        outcome = (await self.slot(id)).outcome
        assert outcome is not None, f"{id} has no outcome"
        return outcome

    async def kinds(self, id: str = "a") -> list[str]:
        """What the log says of an id."""
        page = await self.storage.events(self.queue, limit=1000, now=self.now)
        return [event.kind for _, event in page.events if event.id == id]


def fence_of(job: Job) -> int:
    assert job.run is not None, "it was claimed"
    return job.run.fence
