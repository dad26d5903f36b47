"""arq: concurrency 10, polls every 5 ms, keeps no results."""

import asyncio

import tally
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

settings = RedisSettings.from_dsn(tally.URL)
counted = tally.Tally()


async def job(ctx, x, y):
    del ctx, y
    counted.job(x)


async def put():
    pool = await create_pool(settings)
    for numbers in tally.chunks(50):
        await asyncio.gather(*(pool.enqueue_job("job", n, 22) for n in numbers))


async def ask():
    pool = await create_pool(settings)
    for sent in tally.spaced():
        await pool.enqueue_job("job", sent, 22)


if tally.VERB == "put":
    tally.told(lambda: asyncio.run(put()))
elif tally.VERB == "ask":
    asyncio.run(ask())
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
        tally.ready()
        await worker.async_run()

    import uvloop

    uvloop.run(work())
