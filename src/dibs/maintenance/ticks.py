"""The schedules that tasks declare, in the storage: planted, changed and removed at the start of a worker.

A tick is the job that runs a schedule once. Each tick enqueues the next tick when it is settled. If the next
tick is missing, for example because a user cancelled it, `enqueue_missing_tick` enqueues it.
"""

from __future__ import annotations

import logging
from typing import Final

from dibs.client.stored_schedules import (
    PAGE,
    enqueue_tick,
    has_schedule,
    readable_schedule,
    remove_schedule,
    storage_now,
)
from dibs.model.job import Slot
from dibs.model.schedule import (
    SCHEDULE_ATTRIBUTE,
    TICK_ID,
    Schedule,
    changed_tick,
    missing_tick,
)
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Seconds between two checks of a schedule. If a tick is cancelled, the schedule stops for up to this time.
CHECK_EVERY: Final = 60.0


async def enqueue_missing_tick(storage: Storage, queue: str, schedule: Schedule) -> bool:
    """Enqueue the next tick of a declared schedule if it is missing, and return whether it was missing.

    Concurrent calls enqueue one tick, because all ticks of a queue have the same id. Raise StorageError,
    OutcomeUnknown, QueueFull or Refused; call it again to complete the check.
    """
    now = await storage_now(storage, queue)
    [slot] = await storage.get(queue, [TICK_ID])
    request = missing_tick(schedule, slot, now)
    if request is not None:
        await enqueue_tick(storage, queue, request)
    return request is not None


async def apply_declared_schedule(storage: Storage, queue: str, schedule: Schedule | None, now: int) -> None:
    """Make the schedule that a task declares the schedule of its queue, and remove that of an older release.

    The latest start of a worker decides: the tick carries its schedule, and workers that started earlier go
    on with it. Each change is logged. `schedule` is None for a task that declares none; `now` is the time of
    the storage. The errors are those of `enqueue_missing_tick`.
    """
    [slot] = await storage.get(queue, [TICK_ID])
    before = _describe(slot)
    if schedule is None:
        if before is not None:
            logger.info("%s: the schedule %s is removed: its task declares none", queue, before)
            await remove_schedule(storage, queue, TICK_ID)
        return
    request = changed_tick(schedule, TICK_ID, slot, now)
    if request is None:
        return
    if before is not None:
        logger.info("%s: the schedule %s is now %s", queue, before, schedule)
    await enqueue_tick(storage, queue, request)


def _describe(slot: Slot) -> str | None:
    """Return the schedule of the next tick as text; None without one."""
    if not has_schedule(slot):
        return None
    schedule = readable_schedule(slot)
    return "that cannot be read" if schedule is None else str(schedule)


async def holds_only_ticks(storage: Storage, queue: str) -> bool:
    """Return whether each scheduled job of a queue is the first attempt of a tick.

    A tick that had an attempt waits for a retry, so the work of the queue is not finished.
    """
    after: str | None = None
    while True:
        page = await storage.list(queue, "scheduled", after=after, limit=PAGE)
        if not all(map(_is_first_attempt_of_tick, (slot for _, slot in page.items))):
            return False
        if (after := page.after) is None:
            return True


def _is_first_attempt_of_tick(slot: Slot) -> bool:
    job = slot.current
    if job is None or job.run is not None:
        return True  # it has changed since the page was read
    return job.attempts == 0 and SCHEDULE_ATTRIBUTE in job.data.attributes
