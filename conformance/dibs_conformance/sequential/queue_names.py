"""A probe of `queues`: each way in which a queue gets its first job makes the list name the queue."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dibs.model.job import FAIL_SUFFIX, Error, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, FollowUp, HandOff, SettingsPatch, Settlement
from dibs.storage.protocol import Storage

NOW: Final = 1_767_225_600_000
#: Seconds by which the list may lag behind.
LAG: Final = 5.0
PAUSE: Final = 0.05
FAILED: Final = Fail(error=Error(type="E"))


async def check_queue_names(storage: Storage) -> tuple[int, list[str]]:
    """Put jobs into queues by enqueue, import, fail job and follow-up. `queues` must name each queue."""
    expected = {
        "enqueued": "an enqueue",
        "imported": "an import",
        "settled" + FAIL_SUFFIX: "a failed settlement",
        "finished" + FAIL_SUFFIX: "a failed finish",
    }
    await enqueue(storage, "enqueued")
    exported = await storage.export("enqueued", limit=1)
    await storage.import_("imported", exported.records, now=NOW)
    for queue in ("settled", "finished"):
        await storage.configure(queue, SettingsPatch(fail_handler=True), now=NOW)
    await end_run(storage, "settled", FAILED)
    await finish_run(storage, "finished", FAILED)
    if storage.capabilities.cross_queue:
        expected |= {"settled follow-up": "a settlement", "finished follow-up": "a finish"}
        await end_run(storage, "ended", follow_up("settled follow-up"))
        await finish_run(storage, "handed-off", follow_up("finished follow-up"))
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


def follow_up(queue: str) -> Complete:
    return Complete(then=(FollowUp(queue=queue, job=NewJob(id="next")),))


async def enqueue(storage: Storage, queue: str) -> None:
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="a"))], now=NOW)


async def end_run(storage: Storage, queue: str, action: Complete | Fail | HandOff) -> int:
    """Enqueue a job, claim it, and settle its run. Return its revision."""
    await enqueue(storage, queue)
    lease = (await storage.grant([queue], 60_000, "kit", now=NOW)).lease
    [job] = (await storage.claim(queue, lease, 1, now=NOW)).jobs
    fence = job.run.fence if job.run is not None else 0
    await storage.settle(queue, [Settlement(id="a", fence=fence, action=action)], now=NOW)
    return job.revision


async def finish_run(storage: Storage, queue: str, end: Complete | Fail) -> None:
    revision = await end_run(storage, queue, HandOff())
    await storage.finish(queue, "a", end, revision, now=NOW)
