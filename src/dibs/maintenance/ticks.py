"""The repair of schedules: a queue whose next tick is missing gets it again."""

from __future__ import annotations

from typing import Final

from dibs.model.schedule import TICK_ID, Schedule, missing_tick
from dibs.storage.protocol import Storage

#: Seconds between two checks of a schedule. This is how long a schedule rests whose tick was cancelled.
CHECK_EVERY: Final = 60.0
#: The id of a lease that no storage grants. To renew it changes no state and returns the storage's time.
UNUSED_LEASE: Final = "0" * 32


async def enqueue_missing_tick(storage: Storage, queue: str, schedule: Schedule) -> bool:
    """Enqueue the next tick of a schedule if it is missing. Return whether it was.

    Concurrent calls enqueue one tick, because all ticks of a queue have the same id. Raise StorageError,
    OutcomeUnknown or Refused; call it again to complete the check.
    """
    now = (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now
    [slot] = await storage.get(queue, [TICK_ID])
    request = missing_tick(schedule, slot, now)
    if request is not None:
        await storage.enqueue(queue, [request])
    return request is not None
