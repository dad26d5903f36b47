"""pgqueuer: batches of 500, durable tables, the asyncpg driver."""

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
    await Queries(await driver()).install()


async def enqueue_all():
    queries = Queries(await driver())
    for numbers in harness.chunks(500):
        payloads = [json.dumps({"x": n, "y": 22}).encode() for n in numbers]
        await queries.enqueue(["job"] * len(payloads), payloads, [0] * len(payloads))


async def send():
    queries = Queries(await driver())
    for sent in harness.send_times():
        await queries.enqueue(["job"], [json.dumps({"x": sent, "y": 22}).encode()], [0])


async def work():
    queuer = PgQueuer(await driver())

    @queuer.entrypoint("job")
    async def job(job):
        counter.count(json.loads(job.payload)["x"])

    harness.ready()
    await queuer.run(batch_size=500)


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: uvloop.run(enqueue_all()))
else:
    uvloop.run({"prepare": prepare, "send": send}.get(harness.STEP, work)())
