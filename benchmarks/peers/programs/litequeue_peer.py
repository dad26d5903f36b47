"""litequeue: one SQLite file; each put and each pop is one transaction."""

import json
import time

import harness
from litequeue import LiteQueue

queue = LiteQueue(harness.URL.removeprefix("file:") + "/litequeue.db")
counter = harness.JobCounter()


def enqueue_all():
    for n in range(harness.COUNT):
        queue.put(json.dumps({"x": n, "y": 22}))


def work():
    harness.ready()
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.0005)
            continue
        counter.count(json.loads(message.data)["x"])
        queue.done(message.message_id)


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "send":
    for sent in harness.send_times():
        queue.put(json.dumps({"x": sent, "y": 22}))
else:
    work()
