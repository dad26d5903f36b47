"""The allocations of each storage verb for a job, in batches of 100. They are the same on a busy machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from benchmarks.scenarios import BATCH, LEASE, requests
from dibs.model.requests import Complete, Settlement
from dibs.storage.protocol import Storage

T = TypeVar("T")

QUEUE: Final = "allocations"
#: Unmeasured calls before the measurement, which allocate everything that is allocated once.
WARM_UP: Final = 5

Row = dict[str, Any]


async def measure_allocations(storage: Storage) -> list[Row]:
    """Return a row for each of enqueue, claim and settle: `verb`, `blocks_held`, `peak_bytes`."""
    lease = (await storage.grant([QUEUE], LEASE, "benchmark")).lease
    rows: list[Row] = []
    tracemalloc.start()
    try:
        for number in range(WARM_UP + 1):
            rows = await _run_job_batch(storage, lease, f"job-{number}")
    finally:
        tracemalloc.stop()
    return rows


async def _run_job_batch(storage: Storage, lease: str, prefix: str) -> list[Row]:
    batch = requests(BATCH, prefix=prefix)
    _, enqueue = await _count("enqueue", storage.enqueue(QUEUE, batch))
    claimed, claim = await _count("claim", storage.claim(QUEUE, lease, BATCH))
    complete = Complete(result=b"null")
    settlements = [
        Settlement(id=job.id, fence=job.run.fence, action=complete)
        for job in claimed.jobs
        if job.run is not None
    ]
    _, settle = await _count("settle", storage.settle(QUEUE, settlements))
    return [enqueue, claim, settle]


async def _count(verb: str, call: Awaitable[T]) -> tuple[T, Row]:
    """Return the result of a call, and a row with its allocations for each job.

    `blocks_held` are the additional memory blocks while the result is referenced; `peak_bytes` is the largest
    additional size during the call.
    """
    gc.collect()
    gc.disable()
    try:
        tracemalloc.reset_peak()
        blocks, (size, _) = sys.getallocatedblocks(), tracemalloc.get_traced_memory()
        result = await call
        held, (_, peak) = sys.getallocatedblocks() - blocks, tracemalloc.get_traced_memory()
    finally:
        gc.enable()
    row = {"verb": verb, "blocks_held": round(held / BATCH, 1), "peak_bytes": round((peak - size) / BATCH)}
    return result, row
