"""celery: the solo pool, prefetch 16; gossip, mingle, heartbeat, events and results are off."""

import harness
from celery import Celery

app = Celery("peers", broker=harness.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=16,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_default_queue="peers",
)
counter = harness.JobCounter()


@app.task(name="job")
def job(x, y):
    del y
    counter.count(x)


def enqueue_all():
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(harness.COUNT):
            job.apply_async((n, 22), producer=producer)


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(lambda n: job.apply_async((n, 22)))
elif harness.STEP == "send":
    for sent, _ in harness.send_times():
        job.apply_async((sent, 22))
else:
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
