"""saq: concurrency 100, results kept for no time."""

import asyncio

import tally
import uvloop
from saq import Queue, Worker

counted = tally.Tally()


async def job(ctx, *, x, y):
    del ctx, y
    counted.job(x)


async def put():
    queue = Queue.from_url(tally.URL, name="peers")
    await queue.connect()
    for numbers in tally.chunks(20):
        await asyncio.gather(*(queue.enqueue("job", x=n, y=22, ttl=-1) for n in numbers))


async def ask():
    queue = Queue.from_url(tally.URL, name="peers")
    await queue.connect()
    for sent in tally.spaced():
        await queue.enqueue("job", x=sent, y=22, ttl=-1)


async def work():
    worker = Worker(Queue.from_url(tally.URL, name="peers"), [job], concurrency=100)
    tally.ready()
    await worker.start()


if tally.VERB == "put":
    tally.told(lambda: uvloop.run(put()))
else:
    uvloop.run(ask() if tally.VERB == "ask" else work())
