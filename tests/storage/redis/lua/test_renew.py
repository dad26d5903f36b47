"""The renewal of a lease."""

from __future__ import annotations

from dibs.storage.redis import RedisStorage, session
from dibs_conformance.servers import RedisServer
from tests.storage.redis.lua.single_steps import count_commands

TTL = 60_000


async def test_one_script_renews_many_queues(storage: RedisStorage, redis_server: RedisServer) -> None:
    """Two scripts for 1,000 queues, with eleven commands for each queue and one for the time."""
    queues = [f"q{n}" for n in range(2 * session.QUEUE_STEP)]
    lease = (await storage.grant(queues, TTL, "me")).lease
    with count_commands(redis_server) as count:
        renewed = await storage.renew(queues, lease, TTL)

    assert all(result.alive for result in renewed.values())
    assert count.number <= 11 * len(queues) + 2 * 2
