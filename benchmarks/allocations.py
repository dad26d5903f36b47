"""What each verb allocates for a job, in batches of a hundred: counted, so the same on a busy machine."""

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
#: Exchanges before the one that counts: what is made once is there by then.
WARM_UP: Final = 5

Row = dict[str, Any]


async def allocations(storage: Storage) -> list[Row]:
    """Return a row for each of enqueue, claim and settle, see `_counted`."""
    lease = (await storage.grant([QUEUE], LEASE, "benchmark")).lease
    rows: list[Row] = []
    tracemalloc.start()
    try:
        for number in range(WARM_UP + 1):
            rows = await _exchange(storage, lease, f"job-{number}")
    finally:
        tracemalloc.stop()
    return rows


async def _exchange(storage: Storage, lease: str, prefix: str) -> list[Row]:
    wanted = requests(BATCH, prefix=prefix)
    _, enqueue = await _counted("enqueue", storage.enqueue(QUEUE, wanted))
    claimed, claim = await _counted("claim", storage.claim(QUEUE, lease, BATCH))
    done = Complete(result=b"null")
    ends = [
        Settlement(id=job.id, fence=job.run.fence, action=done) for job in claimed.jobs if job.run is not None
    ]
    _, settle = await _counted("settle", storage.settle(QUEUE, ends))
    return [enqueue, claim, settle]


async def _counted(verb: str, call: Awaitable[T]) -> tuple[T, Row]:
    """Return the answer, the blocks that are more while it is held, and the bytes that were more at most."""
    gc.collect()
    gc.disable()
    try:
        tracemalloc.reset_peak()
        blocks, (size, _) = sys.getallocatedblocks(), tracemalloc.get_traced_memory()
        answer = await call
        held, (_, peak) = sys.getallocatedblocks() - blocks, tracemalloc.get_traced_memory()
    finally:
        gc.enable()
    told = {"verb": verb, "blocks_held": round(held / BATCH, 1), "peak_bytes": round((peak - size) / BATCH)}
    return answer, told
