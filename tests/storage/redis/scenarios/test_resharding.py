"""A real cluster moves the slots of queues between its nodes while clients and workers use them."""

from __future__ import annotations

import asyncio

from dibs.errors import StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisCluster


def request(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id))


async def test_no_script_runs_on_a_part_of_the_keys_of_a_queue(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    """While a slot moves, some keys of a queue are on one node and some on the other."""
    slot = redis_cluster.slot_of(f"{prefix}:{{q}}:")
    target = next(node for node in redis_cluster.nodes if node is not redis_cluster.owner_of(slot))
    errors: list[BaseException | None] = []
    async with open_url(redis_cluster.url, prefix=prefix) as storage:
        await storage.enqueue("q", [request("before")])
        loop = asyncio.get_running_loop()

        def step() -> None:
            """Enqueue between two keys. The call ends before the next key moves."""
            number = len(errors)
            future = asyncio.run_coroutine_threadsafe(storage.enqueue("q", [request(f"{number}")]), loop)
            errors.append(future.exception(30))

        await asyncio.to_thread(redis_cluster.move_slot, slot, target, step)
        await storage.enqueue("q", [request("after")])
        found = await storage.list("q", "waiting")

    stored = {str(number) for number, error in enumerate(errors) if error is None}
    assert {"before", "after", *stored} == {id for id, _ in found.items}
    assert all(error is None or isinstance(error, StorageUnavailable) for error in errors)
