"""persist-queue: the file queue. Only one process can open it, so the latency cannot be measured."""

import harness
from persistqueue import Queue

queue = Queue(harness.URL.removeprefix("file:") + "/persistqueue", autosave=True)
counter = harness.JobCounter()


def put(n):
    queue.put({"x": n, "y": 22})


def enqueue_all():
    for n in range(harness.COUNT):
        put(n)


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
elif harness.STEP == "single":
    harness.time_single(put)
else:
    for done in range(1, harness.COUNT + 1):
        item = queue.get()
        counter.count(item["x"])
        queue.task_done()
        if done == harness.COUNT:
            harness.report(settled=harness.now())
