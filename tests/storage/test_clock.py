"""The time of each storage goes on after its clock was ahead once, also after a restart."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator

import pytest
from psycopg import AsyncConnection
from redis.asyncio import Redis

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage import clock
from dibs.storage.clock import TOLERANCE, storage_time
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.conftest import ALL_SCHEMES
from tests.redis_cluster import RedisCluster

HOUR = 3_600_000
DAY = 24 * HOUR
#: A time limit for waits that end soon, unless time stands still.
SECONDS = 20

on_each_storage = pytest.mark.parametrize("any_url", ALL_SCHEMES, indirect=True)


def real_time() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def queue() -> str:
    """A queue of this test alone: Redis reports the lead of each queue once in a process."""
    return f"q-{os.urandom(4).hex()}"


@pytest.fixture(autouse=True)
def nothing_reported() -> Iterator[None]:
    clock._reported.clear()
    yield
    clock._reported.clear()


async def use_ahead(url: str, queue: str, ahead: int, jobs: tuple[NewJob, ...] = (NewJob(id="a"),)) -> int:
    """Write to a storage once, at a time that lies `ahead` ms after the real one. Return this time."""
    at = real_time() + ahead
    async with open_storage(url, "manual") as storage:
        await storage.enqueue(queue, [EnqueueRequest(job=job) for job in jobs], now=at)
    return at


async def read_now(storage: Storage, queue: str) -> int:
    return (await storage.grant([queue], 1, "kit")).now


# -- the rule ----------------------------------------------------------------------------------------


def test_a_right_clock_is_the_time() -> None:
    assert (5_000, 0) == storage_time(5_000, 4_000, 0)


@pytest.mark.parametrize("lead", [0, HOUR])
def test_a_small_step_back_stands_still_and_leaves_no_lead(lead: int) -> None:
    """Many small steps of NTP must not add up."""
    highest = 10 * HOUR

    assert (highest, lead) == storage_time(highest - lead - TOLERANCE, highest, lead)


def test_a_clock_far_behind_gets_a_lead() -> None:
    assert (10 * HOUR, HOUR) == storage_time(9 * HOUR, 10 * HOUR, 0)


def test_the_time_goes_on_by_the_lead() -> None:
    assert (10 * HOUR + 7, HOUR) == storage_time(9 * HOUR + 7, 10 * HOUR, HOUR)


def test_a_second_jump_raises_the_lead() -> None:
    assert (20 * HOUR, 11 * HOUR) == storage_time(9 * HOUR, 20 * HOUR, HOUR)


def test_a_clock_that_has_caught_up_ends_the_lead() -> None:
    """A clock that was behind once and was corrected does not jump ahead by the old lead."""
    assert (10 * HOUR, 0) == storage_time(10 * HOUR - 5, 10 * HOUR, HOUR)
    assert (10 * HOUR + 5, 0) == storage_time(10 * HOUR + 5, 10 * HOUR, HOUR)


# -- every storage -----------------------------------------------------------------------------------


async def test_leases_end_and_delays_pass_in_a_cluster(redis_cluster: RedisCluster, queue: str) -> None:
    """The kit tests the same on single servers: `check_jumped_clock`."""
    jobs = (NewJob(id="due"), NewJob(id="delayed", delay=50))
    at = await use_ahead(redis_cluster.url, queue, 10 * DAY, jobs)

    async with open_storage(redis_cluster.url) as storage, asyncio.timeout(SECONDS):
        lease = await storage.grant([queue], 50, "dead")
        assert at <= lease.now < at + DAY
        while True:
            if (await storage.claim(queue, lease.lease, 1)).lost:
                break
            await asyncio.sleep(0.02)
        lease = await storage.grant([queue], HOUR, "alive")
        found: set[str] = set()
        while found != {"due", "delayed"}:
            await storage.reap(queue, 10)
            found |= {job.id for job in (await storage.claim(queue, lease.lease, 10)).jobs}
            await asyncio.sleep(0.02)


@on_each_storage
async def test_a_wait_ends_when_a_delayed_job_falls_due(any_url: str, queue: str) -> None:
    """A wait counts from the time of the storage, not from the clock."""
    await use_ahead(any_url, queue, HOUR, (NewJob(id="delayed", delay=300),))

    async with open_storage(any_url) as storage, asyncio.timeout(SECONDS):
        lease = (await storage.grant([queue], HOUR, "kit")).lease
        claimed = await storage.claim(queue, lease, 1)
        while not claimed.jobs:
            await storage.wait([queue], since={queue: claimed.token})
            claimed = await storage.claim(queue, lease, 1)

    assert "delayed" == claimed.jobs[0].id


@on_each_storage
async def test_reading_alone_lets_the_time_go_on(any_url: str, queue: str) -> None:
    await use_ahead(any_url, queue, HOUR, (NewJob(id="delayed", delay=50),))

    async with open_storage(any_url) as storage, asyncio.timeout(SECONDS):
        while True:
            if not (await storage.counts([queue]))[queue].scheduled:
                break
            await asyncio.sleep(0.02)


@on_each_storage
async def test_the_lead_is_reported_once(any_url: str, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    await use_ahead(any_url, queue, 10 * DAY)
    with caplog.at_level(logging.WARNING, "dibs.storage.clock"):
        for _ in range(2):
            async with open_storage(any_url) as storage:
                granted = await storage.grant([queue], HOUR, "kit")
                await storage.renew([queue], granted.lease, HOUR)
                await storage.counts([queue])

    [message] = [record.getMessage() for record in caplog.records if record.name == "dibs.storage.clock"]
    assert "9 days, 23:59:" in message or "10 days, 0:00:" in message
    assert "Correct the clock" in message


async def test_a_right_clock_is_not_reported(any_url: str, queue: str) -> None:
    await use_ahead(any_url, queue, 0)
    async with open_storage(any_url) as storage:
        await storage.counts([queue])
        await read_now(storage, queue)

    assert not clock._reported


# -- correcting it (docs/howto/correct_the_clock.md) ---------------------------------------------------


async def test_jobs_moved_to_another_storage_have_the_time_of_its_clock(any_url: str, queue: str) -> None:
    at = await use_ahead(any_url, queue, HOUR)
    async with open_storage(any_url) as source, open_storage(f"memory:{queue}") as target:
        await target.import_(queue, (await source.export(queue)).records)
        now = await read_now(target, queue)
        counts = (await target.counts([queue]))[queue]

    assert now < at
    assert 1 == counts.scheduled


async def test_redis_forgets_the_lead_with_the_highest_time(redis_server: RedisServer, queue: str) -> None:
    at = await use_ahead(redis_server.url, queue, HOUR)
    async with open_storage(redis_server.url) as storage, Redis.from_url(redis_server.url) as redis:
        ahead = await read_now(storage, queue)
        await redis.hdel(f"dibs:{{{queue}}}:meta", "time")
        now = await read_now(storage, queue)

    assert now < at <= ahead


async def test_postgres_forgets_the_lead_with_the_highest_time(
    postgres_server: PostgresServer, queue: str
) -> None:
    schema = queue.replace("-", "_")
    url = f"{postgres_server.url}?schema={schema}"
    at = await use_ahead(url, queue, HOUR)
    async with open_storage(url) as storage:
        ahead = await read_now(storage, queue)
        async with await AsyncConnection.connect(postgres_server.url, autocommit=True) as connection:
            await connection.execute(
                f"SELECT setval('{schema}.seen', 1), setval('{schema}.lead', 0)".encode()
            )
        now = await read_now(storage, queue)

    assert now < at <= ahead
