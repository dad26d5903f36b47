"""Numbers after Redis lost its latest writes: a promoted replica, and a snapshot that was restored."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisServer, find_redis, start_redis
from dibs_conformance.servers.processes import LOOPBACK, ServerUnavailable, wait_until
from tests.storage.failovers import SKEWS, Rounds, check_after_loss, play_rounds, skewed_clock


def follow(replica: RedisServer, primary: RedisServer) -> None:
    """Make a server the replica of another one, and wait until it streams."""
    replica.execute("CONFIG", "SET", "masterauth", primary.password)
    replica.execute("REPLICAOF", LOOPBACK, str(primary.port))
    assert wait_until(lambda: "master_link_status:up" in replica.execute("INFO", "replication"), 30)


@pytest.fixture(autouse=True)
def redis_of_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the Redis of a wheel: jemalloc of Debian's Redis reads the clock before libfaketime is ready."""
    with suppress(ServerUnavailable):
        find_redis({"DIBS_REDIS_SERVER": "wheel"})
        if not os.environ.get("DIBS_REDIS_SERVER"):
            monkeypatch.setenv("DIBS_REDIS_SERVER", "wheel")


def start_again(server: RedisServer, skew: int) -> None:
    """Kill a server, and start it with a clock that is some seconds ahead."""
    server.environ |= skewed_clock(skew)
    server.kill()
    try:
        server.start()
    except ServerUnavailable as error:
        pytest.skip(f"libfaketime cannot start this Redis; set DIBS_REDIS_SERVER=wheel: {error}")


def skewed_replica(skew: int) -> RedisServer:
    replica = start_redis()
    start_again(replica, skew)
    return replica


async def fail_over_once(skew: int, *, kept_rounds: int = 3) -> None:
    """Lose the writes of some rounds in a failover, and compare all numbers."""
    with start_redis() as primary, skewed_replica(skew) as replica:
        follow(replica, primary)
        async with open_url(primary.url) as storage:
            # A queue of its own, for the test of a queue that was lost as a whole.
            await storage.enqueue("kept", [EnqueueRequest(job=NewJob(id="a"))])
            kept = await play_rounds(storage, kept_rounds) if kept_rounds else Rounds()
            assert 1 == primary.execute("WAIT", "1", "30000")
            replica.execute("REPLICAOF", "NO", "ONE")
            lost = await play_rounds(storage)
        primary.kill()
        async with open_url(replica.url) as storage:
            await check_after_loss(storage, kept, lost)


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_promoted_replica_repeats_no_number(skew: int) -> None:
    await fail_over_once(skew)


async def test_a_queue_that_was_lost_as_a_whole_repeats_no_number() -> None:
    await fail_over_once(-10, kept_rounds=0)


@pytest.mark.chaos
@pytest.mark.parametrize("skew", SKEWS)
async def test_no_number_repeats_in_many_failovers(skew: int) -> None:
    for _ in range(20):
        await fail_over_once(skew)


async def test_a_restored_snapshot_repeats_no_number() -> None:
    with start_redis() as server:
        async with open_url(server.url) as storage:
            kept = await play_rounds(storage, 3)
            server.execute("SAVE")
            lost = await play_rounds(storage)
        start_again(server, -10)
        async with open_url(server.url) as storage:
            await check_after_loss(storage, kept, lost)


async def test_a_former_primary_that_is_promoted_again_repeats_no_number() -> None:
    """Its process runs on, and the clock of the server that took its place was ahead."""
    with start_redis() as first, skewed_replica(10) as second:
        follow(second, first)
        async with open_url(first.url) as storage:
            kept = await play_rounds(storage, 3)
            assert 1 == first.execute("WAIT", "1", "30000")
        second.execute("REPLICAOF", "NO", "ONE")
        async with open_url(second.url) as storage:
            kept.fences += (await play_rounds(storage, 3)).numbers
            follow(first, second)
            first.execute("REPLICAOF", "NO", "ONE")
            lost = await play_rounds(storage)
        async with open_url(first.url) as storage:
            await check_after_loss(storage, kept, lost)
