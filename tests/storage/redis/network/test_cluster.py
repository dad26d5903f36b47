"""The map of slots of a real cluster: corrected after a move, read from any node, addresses translated."""

from __future__ import annotations

import re

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisCluster
from dibs_conformance.servers.cluster import ClusterNode


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
