"""dibs itself, by the same rules, on uvloop as its worker processes are.

Outcomes are kept for PEER_KEEP seconds; for none, as by peers without results.
"""

import os
import time

import tally
import uvloop

from dibs import Dibs, Retention

KEEP = int(os.environ.get("PEER_KEEP", "0"))
app = Dibs(tally.URL)
counted = tally.Tally()


@app.task(queue="peers", size=1)
async def job(x: int, y: int) -> None:
    """Do nothing but be counted."""
    del y
    counted.job(x)


async def put() -> None:
    """Enqueue them all in one call, which travels in batches."""
    async with app:
        await app.queue("peers").configure(retention=Retention(completed=KEEP))
        begun = time.perf_counter()
        await job.enqueue_many(job.bind(n, 22) for n in range(tally.COUNT))
        print(f'{{"seconds": {time.perf_counter() - begun}}}', flush=True)


async def ask() -> None:
    """Enqueue one at a time."""
    async with app:
        for sent in tally.spaced():
            await job.enqueue(sent, 22)


async def work() -> None:
    """Work in this process until all have come; in memory, enqueue them first."""
    async with app:
        if tally.URL == "memory:":
            await app.queue("peers").configure(retention=Retention(completed=KEEP))
            await job.enqueue_many(job.bind(n, 22) for n in range(tally.COUNT))
        tally.ready()
        await app.work(["peers"])


uvloop.run({"put": put, "ask": ask}.get(tally.VERB, work)())
