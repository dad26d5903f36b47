"""A real replica becomes the primary at the same address: errors, kept jobs and later fences."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dibs import Dibs
from dibs.errors import StorageReadOnly
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage, open_url
from dibs_conformance.servers import RedisServer, start_redis
from dibs_conformance.servers.processes import LOOPBACK, wait_until
from tests.storage.address import address_of, again

Pair = tuple[RedisServer, RedisServer]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and its replica, with the same password."""
    with start_redis() as primary, start_redis() as replica:
        replica.execute("CONFIG", "SET", "masterauth", primary.password)
        replica.execute("CONFIG", "SET", "requirepass", primary.password)
        replica.password = primary.password
        replica.execute("REPLICAOF", LOOPBACK, str(primary.port))
        assert wait_until(lambda: "master_link_status:up" in replica.execute("INFO", "replication"), 30)
        yield primary, replica


def request(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id))


async def claimed(storage: RedisStorage) -> dict[str, int]:
    lease = (await storage.grant(["q"], 60_000, "worker")).lease
    return {job.id: job.run.fence for job in (await storage.claim("q", lease, 10)).jobs if job.run}


async def test_jobs_and_fences_survive_a_failover(pair: Pair) -> None:
    primary, replica = pair
    async with address_of(primary.port) as address:
        url = f"redis://:{primary.password}@{LOOPBACK}:{address.port}/0"
        async with open_url(url) as storage:
            await storage.enqueue("q", [request("a"), request("b")])
            fences = await claimed(storage)
            assert 1 == primary.execute("WAIT", "1", "30000"), "the replica has all of it"
            replica.execute("REPLICAOF", "NO", "ONE")
            # The primary dies before the replica gets this run.
            await storage.enqueue("q", [request("late")])
            lost = await claimed(storage)
            primary.kill()
            address.move(replica.port)
            ends = [ended("a", fences["a"]), ended("late", lost["late"])]
            answers = await again(lambda: storage.settle("q", ends))
            await storage.enqueue("q", [request("late"), request("a")])
            anew = await claimed(storage)

    assert ["done", "lost"] == [answer.status for answer in answers]
    assert {"late", "a"} == set(anew)
    assert anew["late"] > lost["late"]
    assert anew["a"] > fences["a"]


def ended(id: str, fence: int) -> Settlement:
    return Settlement(id=id, fence=fence, action=Complete())


async def test_before_the_promotion_writes_are_refused_and_after_it_they_go_on(pair: Pair) -> None:
    primary, replica = pair
    async with address_of(primary.port) as address:
        url = f"redis://:{primary.password}@{LOOPBACK}:{address.port}/0"
        async with open_url(url, poll=0.1) as storage:
            await storage.enqueue("q", [request("a")])
            assert 1 == primary.execute("WAIT", "1", "30000")
            primary.kill()
            address.move(replica.port)
            with pytest.raises(StorageReadOnly, match="give the address of its primary"):
                await again(lambda: storage.enqueue("q", [request("b")]))
            assert (await storage.get("q", ["a"]))[0].current is not None
            replica.execute("REPLICAOF", "NO", "ONE")
            await storage.enqueue("q", [request("b")])

            assert 2 == (await storage.counts(["q"]))["q"].waiting


@pytest.mark.parametrize("way", ["loop", "direct", "thread"])
async def test_a_connection_to_a_demoted_server_is_replaced(pair: Pair, way: str) -> None:
    """In a planned failover the old primary lives on as a replica, and so do the connections to it."""
    primary, replica = pair
    async with (
        address_of(primary.port) as address,
        Dibs(f"redis://:{primary.password}@{LOOPBACK}:{address.port}/0") as app,
    ):
        queue = app.queue("q")

        async def enqueue(id: str) -> None:
            if way == "thread":
                await asyncio.to_thread(app.sync.queue("q").enqueue, 1, id=id)
            elif way == "direct":
                await queue.enqueue(1, id=id)
            else:
                await app.storage.enqueue("q", [request(id)])

        for number in range(3):
            await enqueue(f"before-{number}")
        assert 1 == primary.execute("WAIT", "1", "30000")
        replica.execute("REPLICAOF", "NO", "ONE")
        primary.execute("CONFIG", "SET", "masterauth", primary.password)
        primary.execute("REPLICAOF", LOOPBACK, str(replica.port))
        address.lead(replica.port)
        for number in range(3):
            await enqueue(f"after-{number}")

    assert 6 == replica.execute("HLEN", "dibs:{q}:waiting")


async def test_wake_ups_come_from_the_new_primary(pair: Pair) -> None:
    primary, replica = pair
    async with address_of(primary.port) as address:
        url = f"redis://:{primary.password}@{LOOPBACK}:{address.port}/0"
        async with open_url(url, poll=60) as storage:
            await storage.enqueue("q", [request("a")])
            await claimed(storage)
            waiting = asyncio.ensure_future(again(lambda: storage.wait(["q"], timeout=60)))
            await asyncio.sleep(0)
            assert 1 == primary.execute("WAIT", "1", "30000")
            replica.execute("REPLICAOF", "NO", "ONE")
            primary.kill()
            address.move(replica.port)
            await again(lambda: storage.enqueue("q", [request("b")]))

            assert (await waiting).woken
