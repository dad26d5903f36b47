"""streaq: concurrency 100, results kept for no time."""

import tally
import uvloop
from streaq import Worker

worker = Worker(redis_url=tally.URL, queue_name="peers", concurrency=100)
counted = tally.Tally()


@worker.task(ttl=0)
async def job(x: int, y: int) -> None:
    del y
    counted.job(x)


async def put():
    async with worker:
        for numbers in tally.chunks(500):
            await worker.enqueue_many([job.enqueue(n, 22) for n in numbers])


async def ask():
    async with worker:
        for sent in tally.spaced():
            await job.enqueue(sent, 22)


if tally.VERB == "put":
    tally.told(lambda: uvloop.run(put()))
elif tally.VERB == "ask":
    uvloop.run(ask())
else:
    tally.ready()
    uvloop.run(worker.run_async())
