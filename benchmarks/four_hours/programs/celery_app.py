"""Celery: the task, and an enqueue of it."""

import os

import work
from celery import Celery

app = Celery("four_hours", broker=os.environ["URL"], backend=os.environ["URL"])
# An hour is the default of Celery on Redis.
app.conf.broker_transport_options = {"visibility_timeout": work.HOUR}
app.conf.broker_connection_retry_on_startup = True
if os.environ["MODE"] == "late":
    # The guide of Celery advises these settings for tasks that must not be lost.
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 1


@app.task(name="export")
def export():
    return work.four_hours()


if __name__ == "__main__":
    export.delay()
