"""saq: concurrency 100, keeps no results."""

import asyncio

import harness
import uvloop
from saq import Queue, Worker

counter = harness.JobCounter()


async def job(ctx, *, x, y):
    del ctx, y
    counter.count(x)


async def enqueue_all():
    queue = Queue.from_url(harness.URL, name="peers")
    await queue.connect()
    for numbers in harness.chunks(20):
        await asyncio.gather(*(queue.enqueue("job", x=n, y=22, ttl=-1) for n in numbers))


async def single():
    queue = Queue.from_url(harness.URL, name="peers")
    await queue.connect()
    await harness.time_single_async(lambda n: queue.enqueue("job", x=n, y=22, ttl=-1))


async def send():
    queue = Queue.from_url(harness.URL, name="peers")
    await queue.connect()
    async for sent, _ in harness.send_times_async():
        await queue.enqueue("job", x=sent, y=22, ttl=-1)


async def work():
    worker = Worker(Queue.from_url(harness.URL, name="peers"), [job], concurrency=100)
    await worker.start()


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: uvloop.run(enqueue_all()))
else:
    uvloop.run({"send": send, "single": single}.get(harness.STEP, work)())
