"""The map of slots of a real cluster: corrected after a move, read from any node, addresses translated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from dibs.errors import ConfigurationError, StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.network.address import parse_cluster_url, read_address_map
from dibs_conformance.servers.processes import LOOPBACK
from tests.redis_cluster import ClusterNode, RedisCluster, start_redis_cluster
from tests.storage.address import address_of, again


def request(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id))


def moved_replies(node: ClusterNode) -> int:
    """Return how many commands a node has answered with MOVED so far."""
    found = re.search(r"errorstat_MOVED:count=(\d+)", node.execute("INFO", "errorstats"))
    return int(found[1]) if found else 0


async def test_a_moved_slot_redirects_one_call_only(redis_cluster: RedisCluster, prefix: str) -> None:
    slot = redis_cluster.slot_of(f"{prefix}:{{q}}:")
    source = redis_cluster.owner_of(slot)
    async with open_url(redis_cluster.url, prefix=prefix) as storage:
        await storage.enqueue("q", [request("a")])
        redis_cluster.move_slot(slot, next(one for one in redis_cluster.nodes if one is not source))
        before = moved_replies(source)
        for id in "bcd":
            await storage.enqueue("q", [request(id)])
        counts = (await storage.counts(["q"]))["q"]

    assert 4 == counts.waiting
    assert 1 == moved_replies(source) - before


async def test_any_seed_opens_the_storage(redis_cluster: RedisCluster, prefix: str) -> None:
    live = redis_cluster.nodes[2].port
    url = f"redis+cluster://:{redis_cluster.password}@{LOOPBACK}:1,{LOOPBACK}:{live}"
    async with open_url(url, prefix=prefix) as storage:
        for name in "abcdef":
            await storage.enqueue(name, [request("x")])

        assert [*"abcdef"] == [info.name for info in await storage.queues()]


async def test_all_seeds_are_named_if_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.storage.redis.network.cluster.CONNECT_PAUSES", (0.0,))

    with pytest.raises(StorageUnavailable, match=f"{LOOPBACK}:1,{LOOPBACK}:2: .*tried 1 times"):
        async with open_url(f"redis+cluster://:secret@{LOOPBACK}:1,{LOOPBACK}:2"):
            pass


@pytest.mark.parametrize("ends", ["killed", "reset"])
async def test_calls_and_wake_ups_go_on_after_the_only_seed_left_the_cluster(ends: str) -> None:
    """The first node gives its slots away and ends, or stays up as a node without a cluster."""
    with start_redis_cluster() as cluster:
        first, second, third = cluster.nodes
        async with open_url(cluster.url, poll=60) as storage:
            names = [f"q{i}" for i in range(12)]
            for name in names:
                await storage.enqueue(name, [request("a")])
            assert not (await storage.wait(["none"], timeout=0.01)).woken
            await asyncio.to_thread(move_all_slots, cluster, first, second)
            if ends == "killed":
                first.kill()
            else:
                await asyncio.to_thread(forget, first, (second, third))
            for name in names:
                await again(partial(storage.enqueue, name, [request("b")]))
            counts = await storage.counts(names)

            assert {2} == {counts[name].waiting for name in names}
            await woken_by_another_client(storage, cluster)
        async with open_url(cluster.url_of_all) as reopened:
            assert 12 <= len(await reopened.queues())


async def woken_by_another_client(storage: RedisStorage, cluster: RedisCluster) -> None:
    """Wait until a message from another client ends a wait. The next poll is a minute away."""
    async with open_url(cluster.url_of_all) as other, asyncio.timeout(30):
        number = 0
        while True:
            number += 1
            name = f"new{number}"
            waiting = asyncio.ensure_future(storage.wait([name], timeout=3))
            await asyncio.sleep(0.2)
            await other.enqueue(name, [request("a")])
            if (await waiting).woken:
                return


def move_all_slots(cluster: RedisCluster, source: ClusterNode, to: ClusterNode) -> None:
    """Move every slot of a node: those with keys one by one, the others at once."""
    ranges = [
        (first, last)
        for first, last, (_, port, *_), *_ in to.execute("CLUSTER", "SLOTS")
        if port == source.port
    ]
    slots = [slot for first, last in ranges for slot in range(first, last + 1)]
    full = [slot for slot in slots if source.execute("CLUSTER", "COUNTKEYSINSLOT", slot)]
    for slot in full:
        cluster.move_slot(slot, to)
    empty = sorted({*slots} - {*full})
    for node in cluster.nodes:
        node.execute("CLUSTER", "DELSLOTS", *empty)
    to.execute("CLUSTER", "ADDSLOTS", *empty)


def forget(node: ClusterNode, others: Sequence[ClusterNode]) -> None:
    """Remove a node without slots from its cluster, as redis-cli's del-node does."""
    for other in others:
        other.execute("CLUSTER", "FORGET", node.node_id)
    node.execute("CLUSTER", "RESET", "SOFT")


async def test_a_replica_takes_over_for_calls_blocking_claims_and_wake_ups() -> None:
    with start_redis_cluster(replicas=1) as cluster:
        primary = cluster.nodes[0]
        async with open_url(cluster.url_of_all, poll=60) as storage:
            name = next(
                f"q{i}" for i in range(100) if cluster.owner_of(cluster.slot_of(f"dibs:{{q{i}}}:")) is primary
            )
            lease = (await storage.grant([name], 600_000, "me")).lease
            await storage.enqueue(name, [request("a")])
            assert 1 == primary.execute("WAIT", "1", "30000")
            primary.kill()
            claimed = await again(lambda: storage.claim_blocking(name, lease, 1, claim_id="c", timeout=0.5))
            await again(lambda: storage.enqueue(name, [request("b")]))
            next_one = await again(lambda: storage.claim_blocking(name, lease, 1, claim_id="c", timeout=0.5))
            await woken_by_another_client(storage, cluster)

    assert [["a"], ["b"]] == [[job.id for job in claim.jobs] for claim in (claimed, next_one)]


@pytest.fixture
async def behind_nat(redis_cluster: RedisCluster) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A URL and an address map that reach the nodes through other ports, and no node announces its port."""
    async with AsyncExitStack() as stack:
        fronts = [await stack.enter_async_context(address_of(node.port)) for node in redis_cluster.nodes]
        inside = [f"{LOOPBACK}:{node.port}" for node in redis_cluster.nodes]
        outside = [f"localhost:{front.port}" for front in fronts]
        yield (
            f"redis+cluster://:{redis_cluster.password}@localhost:{fronts[0].port}",
            dict(zip(inside, outside, strict=True)),
        )
        assert all(front.passed for front in fronts)


@pytest.mark.parametrize("form", ["text", "mapping", "function"])
async def test_nodes_are_reached_at_the_addresses_of_the_map(
    form: str, behind_nat: tuple[str, dict[str, str]], redis_cluster: RedisCluster, prefix: str
) -> None:
    url, addresses = behind_nat
    options: dict[str, Any] = {"address_map": addresses}
    if form == "text":
        url += f"?address_map={','.join(f'{inside}={outside}' for inside, outside in addresses.items())}"
        options = {}
    if form == "function":
        options = {"address_map": read_address_map(addresses)}
    async with open_url(url, prefix=prefix, **options) as storage:
        for i in range(12):
            await storage.enqueue(f"q{i}", [request("x")])
        slot = redis_cluster.slot_of(f"{prefix}:{{q0}}:")
        target = next(node for node in redis_cluster.nodes if node is not redis_cluster.owner_of(slot))
        await asyncio.to_thread(redis_cluster.move_slot, slot, target)
        await storage.enqueue("q0", [request("y")])
        known = {*storage._calls.servers._nodes}  # type: ignore[union-attr]

    assert {"localhost"} == {host for host, _ in known}


@pytest.mark.parametrize(
    ("url", "seeds", "single"),
    [
        ("redis+cluster://a:1,b:2", (("a", 1), ("b", 2)), "redis://a:1"),
        ("rediss+cluster://u:p%2C@a,b:2/0?x=1", (("a", 6379), ("b", 2)), "rediss://u:p%2C@a:6379/0?x=1"),
        ("redis+cluster://[::1]:7,b", (("::1", 7), ("b", 6379)), "redis://[::1]:7"),
    ],
)
def test_a_cluster_url_has_several_seeds(url: str, seeds: tuple[tuple[str, int], ...], single: str) -> None:
    assert (seeds, single) == parse_cluster_url(url)


@pytest.mark.parametrize(
    ("url", "options", "names"),
    [
        ("redis+cluster://a:x", {}, "port"),
        ("redis+cluster://a:1,b:70000", {}, "port"),
        ("redis+cluster://a:1/3", {}, "database '3'"),
        ("redis+cluster://a?address_map=b:1", {}, "'address_map'"),
        ("redis+cluster://a", {"address_map": {"b:1": "c:x"}}, "'c:x'"),
        ("redis+cluster://a", {"address_map": 5}, "'address_map'"),
        ("redis://a", {"address_map": {"b:1": "c:1"}}, "only for clusters"),
        ("redis://a?max_connections=0", {}, "'max_connections'"),
        ("redis://a", {"max_connections": 1.5}, "'max_connections'"),
        ("redis://a", {"max_connections": None}, "'max_connections'"),
    ],
)
def test_wrong_addresses_and_options_are_refused(url: str, options: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        open_url(url, **options)
