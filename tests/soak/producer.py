"""A producer of a soak: `python -m tests.soak.producer RATE`, with RATE enqueues per second.

It writes each enqueue that the storage has accepted to its journal, and ends when the file "stop" exists.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from typing import Any

from dibs import Task
from dibs.errors import DibsError
from tests.soak.app import app, nap_async, nap_in_process, nap_limited, nap_on_thread
from tests.soak.journal import Journal, soak_folder
from tests.soak.limits import id_of

#: Seconds until an enqueue is sent again after the storage failed.
RETRY_AFTER = 0.2
#: Number of ids that many enqueues share, so that the storage merges them.
SHARED_IDS = 20
#: Number of keys that the jobs of the limited queue share.
KEYS = 4
TASKS = (nap_async, nap_on_thread, nap_in_process, nap_limited)
WEIGHTS = (10, 5, 1, 5)

journal = Journal("accepted")


async def produce(rate: float) -> None:
    stop, sequence = soak_folder() / "stop", 0
    async with app:
        while not stop.exists():
            sequence += 1
            await enqueue_once(f"{os.getpid()}-{sequence}")
            await asyncio.sleep(random.uniform(0, 2 / rate))


async def enqueue_once(name: str) -> None:
    """Enqueue a job until the storage accepts it, always with the same request key."""
    task: Task[Any, Any] = random.choices(TASKS, WEIGHTS)[0]
    id = f"shared-{random.randrange(SHARED_IDS)}" if random.random() < 0.2 else name
    delay = random.choice((0, 0, 0, random.uniform(0, 2)))
    arguments: dict[str, Any] = {"fails": random.random() < 0.03}
    if task is nap_limited:
        arguments["key"] = f"key-{random.randrange(KEYS)}"
        id = id_of(arguments["key"], id)
    while True:
        try:
            ticket = await task.options(id=id, delay=delay, request_key=name).enqueue(**arguments)
        except DibsError as error:
            journal.write(name=name, error=f"{type(error).__name__}: {error}", at=time.time())
            await asyncio.sleep(RETRY_AFTER)
        else:
            fields = {"queue": ticket.queue, "id": ticket.id, "revision": ticket.revision}
            journal.write(name=name, **fields, at=time.time())
            return


if __name__ == "__main__":
    asyncio.run(produce(float(sys.argv[1])))
