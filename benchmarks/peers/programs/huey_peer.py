"""huey: one thread, polls at least every 5 ms; on Redis, or in memory if PEER_URL is empty.

It keeps results, and notifies their waiters, only for the step `result`. It acknowledges no job: a job is
gone when a worker takes it.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import harness
from huey import MemoryHuey, RedisHuey

RESULTS = harness.STEP == "result" or os.environ.get("PEER_RESULTS") == "1"
huey = (
    RedisHuey("peers", url=harness.URL, results=RESULTS, notify_result=RESULTS)
    if harness.URL
    else MemoryHuey("peers", results=False)
)
counter = harness.JobCounter()


@huey.task()
def job(x, y):
    del y
    counter.count(x)
    return x if RESULTS else None


def enqueue_all():
    if not harness.URL:
        for n in range(harness.COUNT):
            job(n, harness.Y)
        return
    with ThreadPoolExecutor(4) as threads:
        for part in harness.chunks(-(-harness.COUNT // 4)):
            threads.submit(lambda part=part: [job(n, harness.Y) for n in part])


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(lambda n: job(n, harness.Y))
elif harness.STEP == "send":
    for sent, _ in harness.send_times():
        job(sent, harness.Y)
elif harness.STEP == "result":
    harness.time_results(lambda n: job(n, harness.Y).get(blocking=True, backoff=1, max_delay=0.0005))
else:
    if not harness.URL:
        enqueue_all()
    consumer = huey.create_consumer(
        workers=1, periodic=False, initial_delay=0.001, max_delay=0.005, backoff=1, check_worker_health=False
    )
    consumer.start()
    threading.Event().wait()
