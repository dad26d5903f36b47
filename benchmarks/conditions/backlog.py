"""The rate of claim + settle + enqueue while the number of waiting jobs stays the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from statistics import fmean
from typing import Any, Final

from benchmarks.scenarios import BATCH, LEASE, fill, requests
from benchmarks.storages import empty_storage
from dibs.model.requests import Complete, Settlement
from dibs.storage.protocol import Storage

QUEUE: Final = "backlog"
#: Seconds between two measurements. ext4 skips the inode number of each file that was deleted in the last few
#: seconds, one by one, so a storage that was just deleted slows down the next.
PAUSE: Final = 6.0


async def measure(
    urls: list[str], lengths: list[int], *, seconds: float, show_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each storage and length, and one with the longest backlog scheduled for later.

    The shortest length is measured first and last, and its rate is the mean of both, because the speed of
    the machine changes while a million jobs are enqueued and removed.
    """
    rows = []
    for url in urls:
        kind = url.partition(":")[0]
        backlogs = [*((length, 0) for length in lengths), (lengths[0], lengths[-1])]
        rates: dict[tuple[int, int], list[float]] = {backlog: [] for backlog in backlogs}
        for waiting, scheduled in [*backlogs, backlogs[0]]:
            show_step(f"{kind}, {waiting:,} waiting, {scheduled:,} scheduled")
            rates[waiting, scheduled].append(await _rate_with_backlog(url, waiting, scheduled, seconds))
            await asyncio.sleep(PAUSE)
        rows += [
            {"kind": kind, "waiting": waiting, "scheduled": scheduled, "per_second": round(fmean(measured))}
            for (waiting, scheduled), measured in rates.items()
        ]
    return rows


async def _rate_with_backlog(url: str, waiting: int, scheduled: int, seconds: float) -> float:
    async with empty_storage(url) as storage:
        await fill(storage, QUEUE, requests(scheduled, prefix="later", priority=9, delay=86_400_000))
        await fill(storage, QUEUE, requests(waiting))
        return await _turnover(storage, seconds)


async def _turnover(storage: Storage, seconds: float) -> float:
    """Settle and claim a batch and enqueue another for so many seconds. Return the jobs settled a second."""
    lease = (await storage.grant([QUEUE], LEASE, "benchmark")).lease
    settlements: list[Settlement] = []
    started = time.perf_counter()
    settled = 0
    for number in count():
        result = await storage.settle_and_claim(QUEUE, settlements, lease, BATCH)
        settlements = [
            Settlement(id=job.id, fence=job.run.fence, action=Complete(result=b"null"))
            for job in result.claim.jobs
            if job.run is not None
        ]
        settled += len(result.settled)
        # The first call only claims.
        if number and time.perf_counter() - started > seconds:
            break
        await storage.enqueue(QUEUE, requests(BATCH, prefix=f"batch-{number}"))
    return settled / (time.perf_counter() - started)
