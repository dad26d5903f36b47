"""Redis and Valkey, by TCP and by a Unix socket: the same calls, wake-ups and blocking claims."""

from __future__ import annotations

import asyncio
import re

import pytest

from dibs.errors import StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisServer, ServerUnavailable, find_valkey
from tests.redis_cluster import start_redis_cluster


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=["tcp", "unix socket"])
def url(server: RedisServer, request: pytest.FixtureRequest) -> str:
    return server.url if request.param == "tcp" else server.socket_url


def test_the_server_is_what_its_name_says(valkey_server: RedisServer) -> None:
    assert "server_name:valkey" in valkey_server.execute("INFO", "server")


async def test_a_job_goes_all_the_way(url: str, prefix: str) -> None:
    async with open_url(url, prefix=prefix, poll=60) as storage:
        assert storage.capabilities.blocking_claim
        lease = (await storage.grant(["q"], 60_000, "worker")).lease
        waiting = asyncio.create_task(storage.wait(["other"], timeout=30))
        claiming = asyncio.create_task(storage.claim_blocking("q", lease, 1, claim_id="c", timeout=30))
        await asyncio.sleep(0.05)
        for queue in ("q", "other"):
            await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="a"))])
        (job,) = (await claiming).jobs
        assert (await waiting).woken
        assert job.run is not None
        await storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=Complete(result=b"1"))])
        (slot,) = await storage.get("q", ["a"])

    assert slot.outcome is not None
    assert b"1" == slot.outcome.result


async def test_calls_wait_for_their_turn_if_all_connections_are_in_use(
    server: RedisServer, prefix: str
) -> None:
    url = f"{server.url}?max_connections=2&client_name={prefix}"
    async with open_url(url, prefix=prefix) as storage:
        lease = (await storage.grant(["q0"], 60_000, "worker")).lease
        claiming = asyncio.create_task(storage.claim_blocking("q0", lease, 1, claim_id="c", timeout=30))
        waiting = asyncio.create_task(storage.wait(["q1"], timeout=30))
        calls = [storage.enqueue(f"q{i}", [EnqueueRequest(job=NewJob(id="a"))]) for i in range(100)]
        assert 100 == len(await asyncio.gather(*calls))
        assert (await waiting).woken
        assert 1 == len((await claiming).jobs)
        names = re.findall(r" name=(\w+)", server.execute("CLIENT", "LIST"))

    # Two for requests, one for the blocking claim and one for wake-ups.
    assert 4 >= names.count(prefix) >= 2


async def test_the_database_of_a_socket_is_an_option(server: RedisServer, prefix: str) -> None:
    async with open_url(f"{server.socket_url}?db=5", prefix=prefix) as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

    assert re.search(r"db5:keys=\d", server.execute("INFO", "keyspace"))
    assert server.password not in f"{storage!r} {storage.url}"
    assert str(server.socket) in storage.url


async def test_a_missing_socket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.storage.redis.network.connections.CONNECT_PAUSES", (0.0,))

    with pytest.raises(StorageUnavailable, match=r"/nowhere/redis\.sock"):
        async with open_url("unix:///nowhere/redis.sock"):
            pass


async def test_a_valkey_cluster_takes_jobs_while_a_slot_moves(prefix: str) -> None:
    try:
        found = find_valkey()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with start_redis_cluster(found=found) as cluster:
        slot = cluster.slot_of(f"{prefix}:{{q}}:")
        target = next(node for node in cluster.nodes if node is not cluster.owner_of(slot))
        async with open_url(cluster.url_of_all, prefix=prefix) as storage:
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
            moving = asyncio.create_task(asyncio.to_thread(cluster.move_slot, slot, target))
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="b"))])
            await moving
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="c"))])

            assert 3 == (await storage.counts(["q"]))["q"].waiting
