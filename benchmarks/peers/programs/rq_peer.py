"""rq: SimpleWorker, which forks nothing; results kept for no time."""

import tally
from redis import Redis
from rq import Queue, SimpleWorker

counted = tally.Tally()


def job(x, y):
    del y
    counted.job(x)


def put():
    for numbers in tally.chunks(500):
        queue.enqueue_many([Queue.prepare_data("rq_peer.job", (n, 22), result_ttl=0) for n in numbers])


queue = Queue("peers", connection=Redis.from_url(tally.URL))
if tally.VERB == "put":
    tally.told(put)
elif tally.VERB == "ask":
    for sent in tally.spaced():
        queue.enqueue("rq_peer.job", sent, 22, result_ttl=0)
else:
    import sys

    # The worker imports the job by name: that must be this module, whose tally is the one that counts.
    sys.modules["rq_peer"] = sys.modules["__main__"]
    tally.ready()
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")
