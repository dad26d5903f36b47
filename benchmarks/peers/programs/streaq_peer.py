"""streaq: concurrency 100, keeps no results."""

import harness
import uvloop
from streaq import Worker

worker = Worker(redis_url=harness.URL, queue_name="peers", concurrency=100)
counter = harness.JobCounter()


@worker.task(ttl=0)
async def job(x: int, y: int) -> None:
    del y
    counter.count(x)


async def enqueue_all():
    async with worker:
        for numbers in harness.chunks(500):
            await worker.enqueue_many([job.enqueue(n, 22) for n in numbers])


async def single():
    async with worker:
        await harness.time_single_async(lambda n: job.enqueue(n, 22))


async def send():
    async with worker:
        async for sent, _ in harness.send_times_async():
            await job.enqueue(sent, 22)


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: uvloop.run(enqueue_all()))
elif harness.STEP in ("send", "single"):
    uvloop.run(send() if harness.STEP == "send" else single())
else:
    uvloop.run(worker.run_async())
