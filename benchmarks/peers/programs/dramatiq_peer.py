"""dramatiq: 32 threads, only the Retries middleware."""

import threading
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import tally
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

broker = RedisBroker(url=tally.URL, middleware=[Retries()])
dramatiq.set_broker(broker)
counted = tally.Tally()
lock = threading.Lock()


@dramatiq.actor(queue_name="peers")
def job(x, y):
    del y
    with lock:
        counted.job(x)


def put():
    with ThreadPoolExecutor(4) as threads:
        for part in tally.chunks(-(-tally.COUNT // 4)):
            threads.submit(lambda part=part: [job.send(n, 22) for n in part])


if tally.VERB == "put":
    tally.told(put)
elif tally.VERB == "ask":
    for sent in tally.spaced():
        job.send(sent, 22)
else:
    worker = dramatiq.Worker(broker, worker_threads=32)
    worker.start()
    tally.ready()
    worker.join()
    threading.Event().wait()
