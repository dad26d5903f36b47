"""huey: one thread, results off, a delay of at most 5 ms; on Redis or in memory (PEER_URL empty)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import tally
from huey import MemoryHuey, RedisHuey

huey = RedisHuey("peers", url=tally.URL, results=False) if tally.URL else MemoryHuey("peers", results=False)
counted = tally.Tally()


@huey.task()
def job(x, y):
    del y
    counted.job(x)


def put():
    if not tally.URL:
        for n in range(tally.COUNT):
            job(n, 22)
        return
    with ThreadPoolExecutor(4) as threads:
        for part in tally.chunks(-(-tally.COUNT // 4)):
            threads.submit(lambda part=part: [job(n, 22) for n in part])


if tally.VERB == "put":
    tally.told(put)
elif tally.VERB == "ask":
    for sent in tally.spaced():
        job(sent, 22)
else:
    if not tally.URL:
        put()
    consumer = huey.create_consumer(
        workers=1, periodic=False, initial_delay=0.001, max_delay=0.005, backoff=1, check_worker_health=False
    )
    tally.ready()
    consumer.start()
    threading.Event().wait()
