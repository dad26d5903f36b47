"""taskiq: a stream with acknowledgement (the list broker has none), 10 at a time, no validation."""

import asyncio

import tally
import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(tally.URL, queue_name="peers")
counted = tally.Tally()


@broker.task(task_name="job")
async def job(x, y):
    del y
    counted.job(x)


async def put():
    await broker.startup()
    for numbers in tally.chunks(50):
        await asyncio.gather(*(job.kiq(n, 22) for n in numbers))


async def ask():
    await broker.startup()
    for sent in tally.spaced():
        await job.kiq(sent, 22)


async def work():
    await broker.startup()
    tally.ready()
    await run_receiver_task(broker, validate_params=False, max_prefetch=10, max_async_tasks=10)


if tally.VERB == "put":
    tally.told(lambda: uvloop.run(put()))
else:
    uvloop.run(ask() if tally.VERB == "ask" else work())
