"""dibs: uvloop, as in its worker processes; outcomes are kept for PEER_KEEP seconds.

With PEER_KEEP=0, dibs keeps no outcomes, as peers without results.
"""

import os
import time

import harness
import uvloop

from dibs import Dibs, Retention

KEEP = int(os.environ.get("PEER_KEEP", "0"))
app = Dibs(harness.URL)
counter = harness.JobCounter()


@app.task(queue="peers", size=1)
async def job(x: int, y: int) -> None:
    del y
    counter.count(x)


async def enqueue_all() -> None:
    """Enqueue all jobs in one call, which dibs sends in batches; print the seconds."""
    async with app:
        await app.queue("peers").configure(retention=Retention(completed=KEEP))
        started = time.perf_counter()
        await job.enqueue_many(job.bind(n, 22) for n in range(harness.COUNT))
        print(f'{{"seconds": {time.perf_counter() - started}}}', flush=True)


async def send() -> None:
    async with app:
        for sent in harness.send_times():
            await job.enqueue(sent, 22)


async def work() -> None:
    """Run the jobs in this process. In memory, enqueue them first."""
    async with app:
        if harness.URL == "memory:":
            await app.queue("peers").configure(retention=Retention(completed=KEEP))
            await job.enqueue_many(job.bind(n, 22) for n in range(harness.COUNT))
        harness.ready()
        await app.work(["peers"])


uvloop.run({"enqueue": enqueue_all, "send": send}.get(harness.STEP, work)())
