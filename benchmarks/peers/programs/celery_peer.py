"""celery: the solo pool, prefetch 16, no gossip, mingle, heartbeat, events or results."""

import tally
from celery import Celery

app = Celery("peers", broker=tally.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=16,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_default_queue="peers",
)
counted = tally.Tally()


@app.task(name="job")
def job(x, y):
    del y
    counted.job(x)


def put():
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(tally.COUNT):
            job.apply_async((n, 22), producer=producer)


if tally.VERB == "put":
    tally.told(put)
elif tally.VERB == "ask":
    for sent in tally.spaced():
        job.apply_async((sent, 22))
else:
    tally.ready()
    app.worker_main(
        [
            "worker",
            "--pool",
            "solo",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-l",
            "ERROR",
        ]
    )
