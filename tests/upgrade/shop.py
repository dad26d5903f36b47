"""A program that runs on each version of dibs: a client or a worker of the same application.

python shop.py put PREFIX NUMBER    enqueue jobs, every second one twice; print ids and revisions as JSON
python shop.py work                 run jobs until the queue is empty
python shop.py read                 read such JSON, wait for the results, and print them
python shop.py hold                 open the storage, print a line, wait for a line, and use the storage again
"""

# ruff: noqa: T201 - its output is for the test

from __future__ import annotations

import asyncio
import json
import os
import sys

from dibs import Dibs, current_job

app = Dibs(os.environ["SHOP_URL"])
VERSION = os.environ["SHOP_VERSION"]


@app.task(queue="shop", max_retries=3, retention="1h")
async def order(number: int, note: str = "") -> str:
    # Each run appends its line in one write, so that lines of two processes stay whole.
    descriptor = os.open(os.environ["SHOP_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{current_job().id} {number}{note} {VERSION}\n".encode())
    os.close(descriptor)
    # Long enough that two workers on one queue both get jobs.
    await asyncio.sleep(0.02)
    return f"{number}{note}"


async def put(prefix: str, number: str) -> None:
    found = {}
    async with app:
        for index in range(int(number)):
            call = order.options(id=f"{prefix}-{index}", attributes={"by": VERSION})
            ticket = await call.enqueue(index, note="?")
            if index % 2:
                ticket = await call.enqueue(index, note="!")
            found[ticket.id] = ticket.revision
    print(json.dumps(found))


async def work() -> None:
    async with app:
        await app.work(until="empty", handle_signals=False)


async def serve() -> None:
    async with app:
        await app.work()


async def read() -> None:
    tickets = json.load(sys.stdin)
    async with app:
        waits = (app.queue("shop").ticket(id, revision).result(wait=30) for id, revision in tickets.items())
        results = await asyncio.gather(*waits)
    print(json.dumps(dict(zip(tickets, results, strict=True))))


async def hold() -> None:
    async with app:
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await order.options(id="held").enqueue(1)
        print("enqueued", flush=True)


if __name__ == "__main__":
    asyncio.run(
        put(*sys.argv[2:])
        if sys.argv[1] == "put"
        else {"work": work, "serve": serve, "read": read, "hold": hold}[sys.argv[1]]()
    )
