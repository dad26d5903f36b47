"""A client of the storage protocol for one queue, with a clock that the test sets."""

from __future__ import annotations

from typing import Any, Final

from dibs.model.job import Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import EnqueueRequest, OnConflict, SettleAction, Settlement, Update
from dibs.model.results import EnqueueResult, ReapedJob, SettleResult
from dibs.storage.protocol import Storage

START: Final = 1_900_000_000_000
LEASE: Final = 10_000
DATA: Final = frozenset(JobData.__struct_fields__)


class ProtocolClient:
    """Calls the storage at the time `now`. All claims use the last lease, unless a call names another."""

    def __init__(self, storage: Storage, queue: str = "q") -> None:
        self.storage = storage
        self.queue = queue
        self.now = START
        self._lease = ""

    async def enqueue(
        self, id: str = "a", on_conflict: OnConflict | None = None, *, key: str | None = None, **fields: Any
    ) -> EnqueueResult:
        """Enqueue one job. `fields` are fields of its data, and `run_at` or `delay`."""
        data = JobData(**{name: fields.pop(name) for name in DATA & fields.keys()})
        request = EnqueueRequest(
            job=NewJob(id=id, data=data, **fields), on_conflict=on_conflict or Update(), request_key=key
        )
        return (await self.storage.enqueue(self.queue, [request], now=self.now))[0]

    async def new_lease(self, ttl: int = LEASE) -> str:
        """Grant a new lease. The next claims use it."""
        self._lease = (await self.storage.grant([self.queue], ttl, "protocol", now=self.now)).lease
        return self._lease

    async def claim(self, limit: int = 100, lease: str | None = None) -> list[Job]:
        """Claim up to `limit` due jobs."""
        claim_lease = lease or self._lease or await self.new_lease()
        result = await self.storage.claim(self.queue, claim_lease, limit, now=self.now)
        assert not result.lost
        return list(result.jobs)

    async def claim_one(self, lease: str | None = None) -> Job:
        """Claim one due job."""
        [job] = await self.claim(1, lease)
        return job

    async def settle(self, job: Job, action: SettleAction) -> SettleResult:
        """Settle the run of a job by its fence."""
        settlement = Settlement(id=job.id, fence=fence_of(job), action=action)
        return (await self.storage.settle(self.queue, [settlement], now=self.now))[0]

    async def stall(self, id: str = "a") -> Job:
        """Claim a job under a new lease, let the lease expire, and reap. Return the claimed job."""
        kept, lease = self._lease, await self.new_lease(1)
        self._lease = kept
        job = await self.claim_one(lease)
        assert id == job.id
        self.now += 1
        await self.reap()
        return job

    async def reap(self, limit: int = 100) -> list[ReapedJob]:
        return list(await self.storage.reap(self.queue, limit, now=self.now))

    async def is_renewed(self, lease: str, ttl: int = LEASE) -> bool:
        """Renew the lease, and return whether it was alive."""
        return (await self.storage.renew([self.queue], lease, ttl, now=self.now))[self.queue].alive

    async def lease_is_lost(self, lease: str) -> bool:
        """Claim under the lease, and return whether the lease is lost."""
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

    async def event_kinds(self, id: str = "a") -> list[str]:
        """Return the kinds of all events of an id."""
        page = await self.storage.events(self.queue, limit=1000, now=self.now)
        return [event.kind for _, event in page.events if event.id == id]


def fence_of(job: Job) -> int:
    assert job.run is not None, "the job is not active"
    return job.run.fence
