"""celery: group and chord, results on Redis, the solo pool, prefetch 16, and no events.

Results of nodes are stored, as the docs of chords require. A chord of one node is a chain, which Celery makes
itself. With FLOW_RECOVERY, tasks are acknowledged after their run, and return after the visibility timeout.
"""

import time

import flow_harness as harness
from celery import Celery, chord, group
from celery.signals import worker_ready

app = Celery("celery_flows", broker=harness.URL, backend=harness.URL)
app.conf.update(
    worker_prefetch_multiplier=16,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_disable_rate_limits=True,
    task_default_queue="flows",
)
if harness.RECOVERY:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={
            "visibility_timeout": harness.RECOVERY,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )


@app.task(name="node")
def run_node(flow, number):
    if harness.PAUSE:
        time.sleep(harness.pause_of(number))
    harness.log("n", flow, number)
    return number


@app.task(name="fan_in", ignore_result=True)
def run_fan_in(results, flow):
    harness.fan_in_runs(flow, results)


@worker_ready.connect
def on_ready(**_):
    harness.ready()


def enqueue(flow, nodes):
    chord(group(run_node.s(flow, n) for n in range(nodes)), run_fan_in.s(flow)).apply_async()


if __name__ == "__main__" and harness.STEP == "produce":
    harness.produce(enqueue)
