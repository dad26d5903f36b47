"""arq: concurrency 10, polls every 5 ms, keeps no results."""

import asyncio

import harness
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

settings = RedisSettings.from_dsn(harness.URL)
counter = harness.JobCounter()


async def job(ctx, x, y):
    del ctx, y
    counter.count(x)


async def enqueue_all():
    pool = await create_pool(settings)
    for numbers in harness.chunks(50):
        await asyncio.gather(*(pool.enqueue_job("job", n, 22) for n in numbers))


async def single():
    pool = await create_pool(settings)
    await harness.time_single_async(lambda n: pool.enqueue_job("job", n, 22))


async def send():
    pool = await create_pool(settings)
    async for sent, _ in harness.send_times_async():
        await pool.enqueue_job("job", sent, 22)


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: asyncio.run(enqueue_all()))
elif harness.STEP in ("send", "single"):
    asyncio.run(send() if harness.STEP == "send" else single())
else:

    async def work():
        worker = Worker(
            [job],
            redis_settings=settings,
            max_jobs=10,
            poll_delay=0.005,
            queue_read_limit=1000,
            keep_result=0,
        )
        await worker.async_run()

    import uvloop

    uvloop.run(work())
