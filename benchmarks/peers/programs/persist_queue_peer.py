"""persist-queue: its file queue, with which only one process may work at a time: no latency is measured."""

import tally
from persistqueue import Queue

queue = Queue(tally.URL.removeprefix("file:") + "/persistqueue", autosave=True)
counted = tally.Tally()


def put():
    for n in range(tally.COUNT):
        queue.put({"x": n, "y": 22})


if tally.VERB == "put":
    tally.told(put)
else:
    tally.ready()
    while True:
        item = queue.get()
        counted.job(item["x"])
        queue.task_done()
