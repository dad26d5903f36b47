"""huey: one thread, no results, polls at least every 5 ms; on Redis, or in memory if PEER_URL is empty."""

import threading
from concurrent.futures import ThreadPoolExecutor

import harness
from huey import MemoryHuey, RedisHuey

huey = (
    RedisHuey("peers", url=harness.URL, results=False) if harness.URL else MemoryHuey("peers", results=False)
)
counter = harness.JobCounter()


@huey.task()
def job(x, y):
    del y
    counter.count(x)


def enqueue_all():
    if not harness.URL:
        for n in range(harness.COUNT):
            job(n, 22)
        return
    with ThreadPoolExecutor(4) as threads:
        for part in harness.chunks(-(-harness.COUNT // 4)):
            threads.submit(lambda part=part: [job(n, 22) for n in part])


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "send":
    for sent in harness.send_times():
        job(sent, 22)
else:
    if not harness.URL:
        enqueue_all()
    consumer = huey.create_consumer(
        workers=1, periodic=False, initial_delay=0.001, max_delay=0.005, backoff=1, check_worker_health=False
    )
    harness.ready()
    consumer.start()
    threading.Event().wait()
