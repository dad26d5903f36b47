"""litequeue: one SQLite file; put and pop are one transaction each."""

import json
import time

import tally
from litequeue import LiteQueue

queue = LiteQueue(tally.URL.removeprefix("file:") + "/litequeue.db")
counted = tally.Tally()


def put():
    for n in range(tally.COUNT):
        queue.put(json.dumps({"x": n, "y": 22}))


def work():
    tally.ready()
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.0005)
            continue
        counted.job(json.loads(message.data)["x"])
        queue.done(message.message_id)


if tally.VERB == "put":
    tally.told(put)
elif tally.VERB == "ask":
    for sent in tally.spaced():
        queue.put(json.dumps({"x": sent, "y": 22}))
else:
    work()
