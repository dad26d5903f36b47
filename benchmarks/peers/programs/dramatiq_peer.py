"""dramatiq: 32 threads, only the Retries middleware."""

import threading
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import harness
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

broker = RedisBroker(url=harness.URL, middleware=[Retries()])
dramatiq.set_broker(broker)
counter = harness.JobCounter()
lock = threading.Lock()


@dramatiq.actor(queue_name="peers")
def job(x, y):
    del y
    with lock:
        counter.count(x)


def enqueue_all():
    with ThreadPoolExecutor(4) as threads:
        for part in harness.chunks(-(-harness.COUNT // 4)):
            threads.submit(lambda part=part: [job.send(n, 22) for n in part])


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(lambda n: job.send(n, 22))
elif harness.STEP == "send":
    for sent, _ in harness.send_times():
        job.send(sent, 22)
else:
    worker = dramatiq.Worker(broker, worker_threads=32)
    worker.start()
    worker.join()
    threading.Event().wait()
