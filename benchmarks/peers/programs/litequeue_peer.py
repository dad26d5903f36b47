"""litequeue: one SQLite file; each put and each pop is one transaction."""

import json
import time

import harness
from litequeue import LiteQueue

queue = LiteQueue(harness.URL.removeprefix("file:") + "/litequeue.db")
counter = harness.JobCounter()


def put(n):
    queue.put(json.dumps({"x": n, "y": harness.Y}))


def enqueue_all():
    for n in range(harness.COUNT):
        put(n)


def work():
    done = 0
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.0005)
            continue
        counter.count(json.loads(message.data)["x"])
        queue.done(message.message_id)
        done += 1
        if harness.STEP == "work" and done == harness.COUNT:
            harness.report(settled=harness.now())


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(put)
elif harness.STEP == "send":
    for sent, _ in harness.send_times():
        put(sent)
else:
    work()
