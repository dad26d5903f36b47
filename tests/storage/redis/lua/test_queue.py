"""The time of a queue in Redis, when its clock is behind the highest time that the queue has stored."""

from __future__ import annotations

import time

import pytest

from dibs.errors import StorageFull
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisServer, start_redis

HOUR = 3_600_000
META = "dibs:{q}:meta"
READ = "return {struct.unpack('>I8I8', redis.call('HGET', KEYS[1], 'time'))}"
WRITE = "redis.call('HSET', KEYS[1], 'time', struct.pack('>I8I8', ARGV[1], ARGV[2]))"
REQUEST = EnqueueRequest(job=NewJob(id="a"))


def stored_times(server: RedisServer) -> tuple[int, int]:
    """Return the highest time of the queue and its lead, in ms."""
    highest, lead, _ = server.execute("EVAL", READ, 1, META)
    return highest, lead


def move_time(server: RedisServer, ahead: int) -> None:
    """Store a highest time that lies `ahead` ms after the real time, and leave the lead as it is."""
    highest = time.time_ns() // 1_000_000 + ahead
    server.execute("EVAL", WRITE, 1, META, highest, stored_times(server)[1])


def stored_lead(server: RedisServer) -> int:
    return stored_times(server)[1]


async def test_a_full_server_stores_the_lead() -> None:
    """Without the lead, the time of a full server, which accepts only reads, would stand still."""
    with start_redis() as server:
        async with open_url(server.url) as storage:
            await storage.enqueue("q", [REQUEST])
            move_time(server, HOUR)
            server.execute("CONFIG", "SET", "maxmemory", "1mb")
            await storage.counts(["q"])

            assert HOUR - 60_000 < stored_lead(server) <= HOUR
            with pytest.raises(StorageFull):
                await storage.enqueue("q", [REQUEST])


async def test_a_lead_is_stored_once_and_ends_when_the_clock_has_caught_up() -> None:
    with start_redis() as server:
        async with open_url(server.url) as storage:
            await storage.enqueue("q", [REQUEST])
            assert 0 == stored_lead(server)
            move_time(server, HOUR)
            await storage.get("q", ["a"])
            lead = stored_lead(server)
            await storage.enqueue("q", [REQUEST])
            assert lead == stored_lead(server)
            move_time(server, -HOUR)
            await storage.get("q", ["a"])

            assert 0 == stored_lead(server)


async def test_a_manual_clock_has_no_lead() -> None:
    with start_redis() as server:
        async with open_url(server.url, clock="manual") as storage:
            await storage.enqueue("q", [REQUEST], now=2 * HOUR)
            assert (await storage.grant(["q"], 1, "kit", now=HOUR)).now == 2 * HOUR
            assert 0 == stored_lead(server)
