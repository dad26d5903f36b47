"""rq: SimpleWorker, which runs jobs without a fork; keeps no results."""

import harness
from redis import Redis
from rq import Queue, SimpleWorker

counter = harness.JobCounter()


def job(x, y):
    del y
    counter.count(x)


def enqueue_all():
    for numbers in harness.chunks(500):
        queue.enqueue_many([Queue.prepare_data("rq_peer.job", (n, 22), result_ttl=0) for n in numbers])


queue = Queue("peers", connection=Redis.from_url(harness.URL))
if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(lambda n: queue.enqueue("rq_peer.job", n, 22, result_ttl=0))
elif harness.STEP == "send":
    for sent, _ in harness.send_times():
        queue.enqueue("rq_peer.job", sent, 22, result_ttl=0)
else:
    import sys

    # The worker imports the job by name. Without this line it would import a second copy of this module,
    # with a second counter.
    sys.modules["rq_peer"] = sys.modules["__main__"]
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")
