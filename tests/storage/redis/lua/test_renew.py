"""The fast path of a renewal writes and returns the same as the general path."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import RenewResult
from dibs.storage.redis import RedisStorage, session
from dibs_conformance.servers import RedisServer
from tests.storage.redis.lua.single_steps import FAST, GENERAL, contents, count_commands

TTL = 60_000


def without_times(result: RenewResult) -> RenewResult:
    assert result.expires_at is None or result.now < result.expires_at
    return replace(result, now=0, expires_at=0)


@pytest.mark.parametrize("held", [0, 2])
async def test_a_renewal_is_the_same_on_both_paths(
    storage: RedisStorage, redis_server: RedisServer, prefix: str, held: int
) -> None:
    """A time of the queue that is ahead of the clock leads to the general path."""
    lease = (await storage.grant([FAST, GENERAL], TTL, "me")).lease
    for queue in (FAST, GENERAL):
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=f"{n}")) for n in range(held)])
        await storage.claim(queue, lease, 10)
        await storage.cancel(queue, ["1"], running=True)
    meta = f"{prefix}:{{{GENERAL}}}:meta"
    ahead = int(redis_server.execute("HGET", meta, "now")) + 500
    redis_server.execute("HSET", meta, "now", str(ahead))
    renewed = await storage.renew([FAST, GENERAL], lease, 2 * TTL)

    assert renewed[FAST].alive
    assert (("1",) if held else ()) == renewed[FAST].cancel_requested
    assert without_times(renewed[FAST]) == without_times(renewed[GENERAL])
    fast, general = [await contents(storage, prefix, queue) for queue in (FAST, GENERAL)]
    assert fast == general
    for queue in (FAST, GENERAL):
        ends = redis_server.execute("ZSCORE", f"{prefix}:{{{queue}}}:lease_ends", lease)
        assert renewed[queue].expires_at == int(ends)


async def test_a_renewal_never_shortens_a_lease(storage: RedisStorage) -> None:
    granted = await storage.grant(["q"], TTL, "me")
    renewed = await storage.renew(["q"], granted.lease, 1)

    assert granted.expires_at == renewed["q"].expires_at


async def test_a_lease_that_has_ended_is_not_renewed(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], TTL, "me")).lease
    await storage.drop(["q"], lease, 10)

    for one in (lease, "0" * 32):
        assert not (await storage.renew(["q"], one, TTL))["q"].alive


async def test_one_script_renews_many_queues(storage: RedisStorage, redis_server: RedisServer) -> None:
    """Two scripts for 1,000 queues, with eight commands for each queue and one for the time of the server."""
    queues = [f"q{n}" for n in range(2 * session.QUEUE_STEP)]
    lease = (await storage.grant(queues, TTL, "me")).lease
    with count_commands(redis_server) as count:
        renewed = await storage.renew(queues, lease, TTL)

    assert all(result.alive for result in renewed.values())
    assert count.number <= 8 * len(queues) + 2 * 2
