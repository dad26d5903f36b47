"""dibs: the public API in the producer, and `dibs worker dibs_peer:app` as the worker.

Tuned like its peers: uvloop in the producer too, and outcomes of completed jobs kept for PEER_KEEP seconds.
PEER_DEFAULTS=1 leaves all settings at their defaults.
"""

import asyncio
import os
import time
from datetime import timedelta
from types import FunctionType

import harness
import uvloop

from dibs import Dibs, Retention

DEFAULTS = os.environ.get("PEER_DEFAULTS") == "1"
app = Dibs(harness.URL or "memory:")
counter = harness.JobCounter()


async def run(x: int, y: type(harness.Y)) -> None:
    del y
    counter.count(x)


def declare(queue, name):
    """Declare the task of one queue: a copy of `run` with a name of its own."""
    function = FunctionType(run.__code__, globals(), name)
    function.__annotations__ = run.__annotations__
    globals()[name] = function
    return app.task(queue=queue)(function)


#: Queue -> its task.
jobs = {queue: declare(queue, f"job_{n}") for n, queue in enumerate(harness.QUEUES)}
first_job = jobs[harness.QUEUES[0]]


async def prepare():
    """Set how long outcomes are kept, unless the defaults are measured."""
    async with app:
        await configure()


async def configure():
    if not DEFAULTS:
        for queue in harness.QUEUES:
            await app.queue(queue).configure(retention=Retention(completed=timedelta(seconds=harness.KEEP)))


async def enqueue_all():
    """Enqueue the jobs of each queue in one call, which dibs sends in batches."""
    for queue, numbers in harness.chunks_by_queue(harness.COUNT):
        job = jobs[queue]
        await job.enqueue_many(job.bind(n, harness.Y) for n in numbers)


async def enqueue():
    async with app:
        started = time.perf_counter()
        await enqueue_all()
        harness.print_result(seconds=time.perf_counter() - started)


async def single():
    async with app:
        await harness.time_single_async(lambda n: first_job.enqueue(n, harness.Y))


def blocking():
    with app.sync:
        harness.time_single(lambda n: first_job.sync.enqueue(n, harness.Y))


async def send():
    async with app:
        async for sent, queue in harness.send_times_async():
            await jobs[queue].enqueue(sent, harness.Y)


async def result():
    async with app:
        await harness.time_results_async(lambda n: first_job.enqueue_and_wait(n, harness.Y))


async def work():
    """Run the jobs in this process: in memory there is no other. Report the end once all jobs are settled."""
    async with app:
        await configure()
        await enqueue_all()
        worker = asyncio.create_task(app.work(harness.QUEUES))
        while counter.calls < harness.COUNT:  # noqa: ASYNC110 - an Event would cost each job a check
            await asyncio.sleep(0.005)
        queue = app.queue(harness.QUEUES[0])
        while (counts := await queue.counts()).waiting + counts.active:  # noqa: ASYNC110 - in the storage
            await asyncio.sleep(0.001)
        harness.report(settled=harness.now())
        await worker


if __name__ == "__main__":
    steps = {
        "prepare": prepare,
        "enqueue": enqueue,
        "single": single,
        "send": send,
        "result": result,
        "work": work,
    }
    if harness.STEP == "blocking":
        blocking()
    else:
        (asyncio if DEFAULTS else uvloop).run(steps[harness.STEP]())
