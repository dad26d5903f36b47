"""Drop after the expiry of a lease: the lease is lost, and its jobs stall at the next reap."""

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import ReapedJob
from dibs.storage.registry import open_storage


async def test_a_drop_after_expiry_releases_nothing() -> None:
    """Contract 3, Leases: an expired lease is lost for renew, claim and drop, also before a reap."""
    async with open_storage("memory:late-drop", clock="manual") as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1000)
        granted = await storage.grant(["q"], 50, "late", now=1000)
        [job] = (await storage.claim("q", granted.lease, 1, now=1000)).jobs
        assert job.run is not None

        assert await storage.drop(["q"], granted.lease, 10, now=1050) == {"q": 0}
        assert await storage.reap("q", 10, now=1050) == [ReapedJob("a", job.run.fence, "stalled")]
