"""Short forms of the requests and calls of these tests: enqueue, grant, claim and complete."""

from __future__ import annotations

from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage


def asked(id: str, payload: bytes = b"1", **more: int) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload), **more))


def keyed(id: str, key: str | None = "k", *, delay: int | None = None) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1", key=key), delay=delay))


def done(job: Job, result: bytes | None = None) -> Settlement:
    assert job.run is not None
    return Settlement(id=job.id, fence=job.run.fence, action=Complete(result=result))


async def leased(storage: PostgresStorage, queue: str = "q", ttl: int = 60_000) -> str:
    return (await storage.grant([queue], ttl, "test")).lease


async def fair_lease(storage: PostgresStorage) -> str:
    """Return a lease of the queue q, whose keys take turns."""
    await storage.configure("q", SettingsPatch(fair=True))
    return await leased(storage)


async def claimed(storage: PostgresStorage, queue: str = "q", limit: int = 10) -> tuple[Job, ...]:
    return (await storage.claim(queue, await leased(storage, queue), limit)).jobs
