"""The worker that `benchmarks.flame` samples: it enqueues jobs with an empty handler, and runs all of them.

Its arguments are the URL of the storage and the number of jobs. It prints "ready" between the two.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Final

from dibs import Dibs, Retention

URL: Final = sys.argv[1]
JOBS: Final = int(sys.argv[2])
app = Dibs(URL)


@app.task(queue="flame", size=1)
async def run(x: int, y: int) -> None:
    """Do nothing."""


async def main() -> None:
    """Enqueue all jobs, then run them until the queue is empty."""
    async with app:
        await app.queue("flame").configure(retention=Retention(completed=timedelta(0)))
        await run.enqueue_many(run.bind(n, 22) for n in range(JOBS))
        print("ready", flush=True)
        await app.work(until="empty")


if __name__ == "__main__":
    asyncio.run(main())
