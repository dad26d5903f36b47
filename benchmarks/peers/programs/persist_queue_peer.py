"""persist-queue: the file queue. Only one process can open it, so the latency cannot be measured."""

import harness
from persistqueue import Queue

queue = Queue(harness.URL.removeprefix("file:") + "/persistqueue", autosave=True)
counter = harness.JobCounter()


def enqueue_all():
    for n in range(harness.COUNT):
        queue.put({"x": n, "y": 22})


if harness.STEP == "enqueue":
    harness.time_enqueue(enqueue_all)
else:
    harness.ready()
    while True:
        item = queue.get()
        counter.count(item["x"])
        queue.task_done()
