"""The waiting job of a queue that has been due for the longest time, as far as a bounded reading shows it.

No verb reads the first job in the order of claims, and a listing has no order. So the page reads some waiting
jobs: all of them in a queue with few, and otherwise a part, which shows a least age.
"""

from __future__ import annotations

import time
from typing import Final

from attrs import frozen

from dibs.model.results import Counts
from dibs.storage.protocol import Storage

#: Waiting jobs that are read. Each comes with its payload, up to 1 MiB.
MAX_READ: Final = 25
#: Ms by which the clock of the storage may be ahead.
TOLERANCE: Final = 1000


@frozen
class Oldest:
    """The earliest due time of the waiting jobs that were read, in ms since the epoch."""

    run_at: int
    #: True if all waiting jobs were read.
    is_exact: bool


async def read_oldest(storage: Storage, queue: str, counts: Counts) -> Oldest | None:
    """Return the oldest of up to MAX_READ waiting jobs; None if no job is due."""
    if counts.waiting <= counts.scheduled:
        return None
    page = await storage.list(queue, "waiting", limit=MAX_READ)
    times = [max(job.run_at, job.enqueued_at) for _, slot in page.items if (job := slot.current) is not None]
    # Scheduled jobs wait, too. Clocks may differ by a little.
    due = [at for at in times if at <= time.time() * 1000 + TOLERANCE]
    return Oldest(min(due), page.after is None) if due else None
