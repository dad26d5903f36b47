"""procrastinate: concurrency 10, its own LISTEN, finished jobs deleted."""

import asyncio

import tally
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=tally.URL))
counted = tally.Tally()


@app.task(queue="peers", name="job")
async def job(x, y):
    del y
    counted.job(x)


async def put():
    async with app.open_async():
        for numbers in tally.chunks(500):
            await job.batch_defer_async(*({"x": n, "y": 22} for n in numbers))


async def main():
    async with app.open_async():
        if tally.VERB == "prepare":
            await app.schema_manager.apply_schema_async()
        elif tally.VERB == "ask":
            for sent in tally.spaced():
                await job.defer_async(x=sent, y=22)
        else:
            tally.ready()
            await app.run_worker_async(
                queues=["peers"], concurrency=10, install_signal_handlers=False, delete_jobs="always"
            )


if tally.VERB == "put":
    tally.told(lambda: asyncio.run(put()))
else:
    asyncio.run(main())
