"""procrastinate: concurrency 10, its default LISTEN; finished jobs are deleted unless PEER_KEEP is set."""

import asyncio

import harness
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=harness.URL))
counter = harness.JobCounter()


@app.task(queue="peers", name="job")
async def job(x, y):
    del y
    counter.count(x)


async def enqueue_all():
    async with app.open_async():
        for numbers in harness.chunks(500):
            await job.batch_defer_async(*({"x": n, "y": harness.Y} for n in numbers))


async def main():
    async with app.open_async():
        if harness.STEP == "prepare":
            await app.schema_manager.apply_schema_async()
        elif harness.STEP == "single":
            await harness.time_single_async(lambda n: job.defer_async(x=n, y=harness.Y))
        elif harness.STEP == "send":
            async for sent, _ in harness.send_times_async():
                await job.defer_async(x=sent, y=harness.Y)
        else:
            await app.run_worker_async(
                queues=["peers"],
                concurrency=10,
                install_signal_handlers=False,
                delete_jobs="never" if harness.KEEP else "always",
            )


if harness.STEP == "enqueue":
    harness.time_enqueue(lambda: asyncio.run(enqueue_all()))
else:
    asyncio.run(main())
