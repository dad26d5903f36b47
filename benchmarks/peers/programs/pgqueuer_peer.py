"""pgqueuer: batches of 500, durable tables, the asyncpg driver, and the settings of autovacuum that its
guide to performance recommends. Its log keeps completed jobs.
"""

import json

import asyncpg
import harness
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

counter = harness.JobCounter()


async def driver():
    return AsyncpgDriver(await asyncpg.connect(harness.URL))


async def prepare():
    queries = Queries(await driver())
    await queries.install()
    await queries.optimize_autovacuum()


def payload(n):
    return json.dumps({"x": n, "y": harness.Y}).encode()


async def enqueue_all():
    queries = Queries(await driver())
    for queue, numbers in harness.chunks_by_queue(500):
        payloads = [payload(n) for n in numbers]
        await queries.enqueue([queue] * len(payloads), payloads, [0] * len(payloads))


async def single():
    queries = Queries(await driver())
    await harness.time_single_async(lambda n: queries.enqueue(harness.QUEUES[0], payload(n), 0))


async def send():
    queries = Queries(await driver())
    async for sent, queue in harness.send_times_async():
        await queries.enqueue(queue, payload(sent), 0)


async def work():
    queuer = PgQueuer(await driver())

    async def job(job):
        counter.count(json.loads(job.payload)["x"])

    for queue in harness.QUEUES:
        queuer.entrypoint(queue)(job)
    await queuer.run(batch_size=500)


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: uvloop.run(enqueue_all()))
else:
    uvloop.run({"prepare": prepare, "send": send, "single": single}.get(harness.STEP, work)())
