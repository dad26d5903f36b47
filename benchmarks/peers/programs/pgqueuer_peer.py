"""pgqueuer: batches of 500, durable tables, the asyncpg driver."""

import json

import asyncpg
import tally
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

counted = tally.Tally()


async def driver():
    return AsyncpgDriver(await asyncpg.connect(tally.URL))


async def prepare():
    await Queries(await driver()).install()


async def put():
    queries = Queries(await driver())
    for numbers in tally.chunks(500):
        payloads = [json.dumps({"x": n, "y": 22}).encode() for n in numbers]
        await queries.enqueue(["job"] * len(payloads), payloads, [0] * len(payloads))


async def ask():
    queries = Queries(await driver())
    for sent in tally.spaced():
        await queries.enqueue(["job"], [json.dumps({"x": sent, "y": 22}).encode()], [0])


async def work():
    queuer = PgQueuer(await driver())

    @queuer.entrypoint("job")
    async def job(job):
        counted.job(json.loads(job.payload)["x"])

    tally.ready()
    await queuer.run(batch_size=500)


if tally.VERB == "put":
    tally.told(lambda: uvloop.run(put()))
else:
    uvloop.run({"prepare": prepare, "ask": ask}.get(tally.VERB, work)())
