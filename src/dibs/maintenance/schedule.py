"""Planting the tick of a periodic task where it is missing."""

from __future__ import annotations

from typing import Final

from dibs.model.schedule import TICK, Schedule, missing_tick
from dibs.storage.protocol import Storage

#: Seconds between two looks at a schedule: what a cancellation ended goes on by then.
PLANT_EVERY: Final = 60.0
#: A lease that is never granted. What renews it changes nothing, and is told the storage's time.
UNUSED_LEASE: Final = "0" * 32


async def plant(storage: Storage, queue: str, schedule: Schedule) -> bool:
    """Enqueue the next tick of the queue's schedule unless there is one, and tell whether that was so.

    Any number of processes may do it at any time: there is one tick, for it has one id. Raises
    StorageError, OutcomeUnknown, Refused; then the rest is for the next time.
    """
    now = (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now
    [slot] = await storage.get(queue, [TICK])
    request = missing_tick(schedule, slot, now)
    if request is not None:
        await storage.enqueue(queue, [request])
    return request is not None
