"""A program that adds members to a batch until it is killed: batch_producer.py URL QUEUE."""

# ruff: noqa: T201 - the test reads the lines

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from dibs import Bound, Dibs
from tests.flow.tasks import load

SEGMENT = 50


async def main(url: str, queue: str) -> None:
    app = Dibs(url, flows=True)
    task = app.task(queue=queue, max_retries=0)(load)

    def members(begin: int) -> Iterator[Bound[Any]]:
        for number in range(begin, begin + SEGMENT):
            yield task.bind("", number)

    async with app, app.batch(id="b", open_for=1) as batch:
        for begin in count(0, SEGMENT):
            await batch.enqueue_many(members(begin))
            print(begin, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
