"""A probe of `queues`: each way in which a queue gets its first job makes the list name the queue."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dibs.model.job import FAIL_SUFFIX
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

NOW: Final = 1_767_225_600_000
#: Seconds by which the list may lag behind.
LAG: Final = 5.0
PAUSE: Final = 0.05


#: Claims the job `a` and ends it, under `fail_handler`.
RUN: Final = "set fail_handler=yes; grant; enqueue a; claim; "
#: The steps that give a queue its first job: the queue, the way, and the queue of the steps.
FIRST_JOBS: Final = (
    ("enqueued", "an enqueue", "enqueued", "enqueue a"),
    ("settled" + FAIL_SUFFIX, "a failed settlement", "settled", RUN + "fail a"),
    ("finished" + FAIL_SUFFIX, "a failed finish", "finished", RUN + "hand_off a; finish fail a"),
)
FOLLOW_UPS: Final = (
    ("settled-follow-up", "a settlement", "ended", RUN + "complete a then=settled-follow-up>next"),
    (
        "finished-follow-up",
        "a finish",
        "away",
        RUN + "hand_off a; finish complete a then=finished-follow-up>next",
    ),
)


async def check_queue_names(storage: Storage) -> tuple[int, list[str]]:
    """Put jobs into queues by enqueue, import, fail job and follow-up. `queues` must name each queue."""
    tries = (*FIRST_JOBS, *(FOLLOW_UPS if storage.capabilities.cross_queue else ()))
    for _, _, queue, steps in tries:
        await play_steps(storage, HistoryCalls(queue), steps, now=NOW)
    exported = await storage.export("enqueued", limit=1)
    await storage.import_("imported", exported.records, now=NOW)
    expected = {"imported": "an import", **{name: way for name, way, _, _ in tries}}
    missing = await wait_for_names(storage, set(expected))
    return len(expected), [
        f"queues() does not name the queue {name!r}, which got a job by {expected[name]}"
        for name in sorted(missing)
    ]


async def wait_for_names(storage: Storage, names: set[str]) -> set[str]:
    """Return the names that `queues` does not have after LAG seconds."""
    ends = time.monotonic() + LAG
    while missing := names - {info.name for info in await storage.queues()}:
        if time.monotonic() > ends:
            return missing
        await asyncio.sleep(PAUSE)
    return set()
