"""The number of commands that a call runs on the server, with those of its script."""

from __future__ import annotations

from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage, session
from dibs_conformance.servers import RedisServer
from tests.storage.redis.servers import count_commands

TTL = 60_000


async def test_a_call_for_one_job_runs_few_commands(storage: RedisStorage, redis_server: RedisServer) -> None:
    lease = (await storage.grant(["q"], TTL, "me")).lease
    counts = {}
    for id in ("warm", "a"):
        with count_commands(redis_server) as enqueue:
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1")))])
        with count_commands(redis_server) as claim:
            (job,) = (await storage.claim("q", lease, 9)).jobs
        assert job.run is not None
        with count_commands(redis_server) as settle:
            await storage.settle("q", [Settlement(id=id, fence=job.run.fence, action=Complete())])
        counts = {"enqueue": enqueue.number, "claim": claim.number, "settle": settle.number}

    assert {"enqueue": 14, "claim": 18, "settle": 23} == counts


async def test_one_script_renews_many_queues(storage: RedisStorage, redis_server: RedisServer) -> None:
    """Two scripts for 1,000 queues, with eleven commands for each queue and one for the time."""
    queues = [f"q{n}" for n in range(2 * session.QUEUE_STEP)]
    lease = (await storage.grant(queues, TTL, "me")).lease
    with count_commands(redis_server) as count:
        renewed = await storage.renew(queues, lease, TTL)

    assert all(result.alive for result in renewed.values())
    assert count.number <= 11 * len(queues) + 2 * 2
