"""A real cluster moves the slots of queues between its nodes while clients and workers use them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter

from dibs import Dibs, Ticket
from dibs.errors import StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from tests.redis_cluster import RedisCluster
from tests.storage.address import again


def request(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id))


async def test_no_script_runs_on_a_part_of_the_keys_of_a_queue(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    """While a slot moves, some keys of a queue are on one node and some on the other."""
    # A name of its own: the name of a queue decides its slot, and each key of a slot takes a second to move.
    queue = f"q-{prefix}"
    slot = redis_cluster.slot_of(f"{prefix}:{{{queue}}}:")
    target = next(node for node in redis_cluster.nodes if node is not redis_cluster.owner_of(slot))
    errors: list[BaseException | None] = []
    async with open_url(redis_cluster.url, prefix=prefix) as storage:
        await storage.enqueue(queue, [request("before")])
        loop = asyncio.get_running_loop()

        def step() -> None:
            """Enqueue between two keys. The call ends before the next key moves."""
            number = len(errors)
            future = asyncio.run_coroutine_threadsafe(storage.enqueue(queue, [request(f"{number}")]), loop)
            errors.append(future.exception(30))

        await asyncio.to_thread(redis_cluster.move_slot, slot, target, step)
        await storage.enqueue(queue, [request("after")])
        found = await storage.list(queue, "waiting")

    stored = {str(number) for number, error in enumerate(errors) if error is None}
    assert {"before", "after", *stored} == {id for id, _ in found.items}
    assert all(error is None or isinstance(error, StorageUnavailable) for error in errors)


QUEUES = tuple(f"move{number}" for number in range(4))
JOBS, MOVES = 100, 40
#: The runs of each job by its id, of the workers in this process.
RUNS: Counter[str] = Counter()


def record(id: str) -> str:
    RUNS[id] += 1
    return id


async def test_jobs_run_once_while_the_slots_of_their_queues_move(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    """Two workers leave blocking claims at the nodes while they are idle, and clients wait for results."""
    url = f"{redis_cluster.url_of_all}?prefix={prefix}"
    workers = [Dibs(url) for _ in range(2)]
    async with Dibs(url) as client:
        for app in (client, *workers):
            for name in QUEUES:
                app.task(queue=name, timeout=None)(record)
        working = [asyncio.create_task(app.work()) for app in workers]
        moving = asyncio.create_task(asyncio.to_thread(move_at_random, redis_cluster, prefix))
        results = await asyncio.gather(*(enqueue_and_wait(client, name) for name in QUEUES))
        await moving
        # Workers are idle now, at the nodes to which the slots have moved last.
        last = [await ticket.result(30) for ticket in [await send(client, name, "last") for name in QUEUES]]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        counts = [await client.queue(name).counts() for name in QUEUES]

    ids = [[f"{name}.{number}" for number in range(JOBS)] for name in QUEUES]
    assert ids == results
    assert [f"{name}.last" for name in QUEUES] == last
    assert {JOBS + 1} == {one.completed for one in counts}
    assert {0} == {one.failed + one.waiting + one.active for one in counts}
    assert {1} == {RUNS[id] for id in (*itertools.chain(*ids), *last)}


def move_at_random(cluster: RedisCluster, prefix: str) -> None:
    choice = random.Random(1)
    for _ in range(MOVES):
        slot = cluster.slot_of(f"{prefix}:{{{choice.choice(QUEUES)}}}:")
        cluster.move_slot(slot, choice.choice(cluster.nodes), lambda: time.sleep(0.002))


async def enqueue_and_wait(client: Dibs, name: str) -> list[str]:
    tickets = []
    for number in range(JOBS):
        tickets.append(await send(client, name, str(number)))
        await asyncio.sleep(0.03)
    return [await ticket.result(60) for ticket in tickets]


async def send(client: Dibs, name: str, number: str) -> Ticket[str]:
    """Enqueue a job, again while its slot moves for longer than the storage waits."""
    id = f"{name}.{number}"
    return await again(lambda: client.get_task(name).options(id=id).enqueue(id))
