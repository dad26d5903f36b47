"""The repair of schedules.

A tick is the job that runs a periodic task once. Each tick enqueues the next tick when it is settled. If the
next tick is missing, for example because a user cancelled it, `enqueue_missing_tick` enqueues it.
"""

from __future__ import annotations

from typing import Final

from dibs.model.schedule import TICK_ID, Schedule, missing_tick
from dibs.storage.protocol import Storage

#: Seconds between two checks of a schedule. If a tick is cancelled, the schedule stops for up to this time.
CHECK_EVERY: Final = 60.0
#: A lease id that no storage grants. A renewal of it changes no state, and its reply has the storage's time.
UNUSED_LEASE: Final = "0" * 32


async def enqueue_missing_tick(storage: Storage, queue: str, schedule: Schedule) -> bool:
    """Enqueue the next tick of a schedule if it is missing, and return whether it was missing.

    Concurrent calls enqueue one tick, because all ticks of a queue have the same id. Raise StorageError,
    OutcomeUnknown or Refused; call it again to complete the check.
    """
    now = (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now
    [slot] = await storage.get(queue, [TICK_ID])
    request = missing_tick(schedule, slot, now)
    if request is not None:
        await storage.enqueue(queue, [request])
    return request is not None
