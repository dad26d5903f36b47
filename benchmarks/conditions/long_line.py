"""The rate of claim + settle + enqueue while the line is held at a length, and with more scheduled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from statistics import fmean
from typing import Any, Final

from benchmarks.places import empty_place
from benchmarks.scenarios import BATCH, LEASE, fill, requests
from dibs.model.requests import Complete, Settlement
from dibs.storage.protocol import Storage

QUEUE: Final = "line"
#: Seconds between two lines: ext4 steps over the number of each file that was removed in the last few, one by
#: one, so a place that has just gone slows down the next.
REST: Final = 6.0


async def measure(
    urls: list[str], lengths: list[int], *, seconds: float, told: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each storage and length; the last is the shortest behind the longest, scheduled.

    The shortest line is measured first and last, and its rate the mean of the two: a machine has grown
    slower, or faster, by the time a million jobs were put and removed.
    """
    rows = []
    for url in urls:
        kind = url.partition(":")[0]
        lines = [*((length, 0) for length in lengths), (lengths[0], lengths[-1])]
        rates: dict[tuple[int, int], list[float]] = {line: [] for line in lines}
        for length, scheduled in [*lines, lines[0]]:
            told(f"{kind}, {length:,} waiting, {scheduled:,} scheduled")
            rates[length, scheduled].append(await _held_at(url, length, scheduled, seconds))
            await asyncio.sleep(REST)
        rows += [
            {"kind": kind, "waiting": length, "scheduled": scheduled, "per_second": round(fmean(found))}
            for (length, scheduled), found in rates.items()
        ]
    return rows


async def _held_at(url: str, length: int, scheduled: int, seconds: float) -> float:
    async with empty_place(url) as storage:
        await fill(storage, QUEUE, requests(scheduled, prefix="later", priority=9, delay=86_400_000))
        await fill(storage, QUEUE, requests(length))
        return await _turn_over(storage, seconds)


async def _turn_over(storage: Storage, seconds: float) -> float:
    """Settle and claim a batch, enqueue another, until the time is up."""
    lease = (await storage.grant([QUEUE], LEASE, "benchmark")).lease
    settlements: list[Settlement] = []
    begun = time.perf_counter()
    done = 0
    for turn in count():
        answer = await storage.settle_and_claim(QUEUE, settlements, lease, BATCH)
        settlements = [
            Settlement(id=job.id, fence=job.run.fence, action=Complete(result=b"null"))
            for job in answer.claim.jobs
            if job.run is not None
        ]
        done += len(answer.settled)
        # The first turn has nothing to settle.
        if turn and time.perf_counter() - begun > seconds:
            break
        await storage.enqueue(QUEUE, requests(BATCH, prefix=f"turn-{turn}"))
    return done / (time.perf_counter() - begun)
