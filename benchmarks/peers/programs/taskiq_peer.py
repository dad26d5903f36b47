"""taskiq: the stream broker (the list broker has no acknowledgement), concurrency 10, no validation."""

import asyncio

import harness
import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(harness.URL, queue_name="peers")
counter = harness.JobCounter()


@broker.task(task_name="job")
async def job(x, y):
    del y
    counter.count(x)


async def enqueue_all():
    await broker.startup()
    for numbers in harness.chunks(50):
        await asyncio.gather(*(job.kiq(n, 22) for n in numbers))


async def single():
    await broker.startup()
    await harness.time_single_async(lambda n: job.kiq(n, 22))


async def send():
    await broker.startup()
    async for sent, _ in harness.send_times_async():
        await job.kiq(sent, 22)


async def work():
    await broker.startup()
    await run_receiver_task(broker, validate_params=False, max_prefetch=10, max_async_tasks=10)


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: uvloop.run(enqueue_all()))
else:
    uvloop.run({"send": send, "single": single}.get(harness.STEP, work)())
