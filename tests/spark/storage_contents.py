"""All events and slots of a small storage, read through the protocol."""

from __future__ import annotations

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.storage.protocol import Storage
from tests.spark.random_day import QUEUES


async def all_events(storage: Storage) -> list[tuple[str, str, LogEvent]]:
    """Return every event, with its queue and offset."""
    found: list[tuple[str, str, LogEvent]] = []
    for queue in QUEUES:
        after = None
        while (page := await storage.events(queue, after=after, limit=1000)).events:
            found += [(queue, offset, event) for offset, event in page.events]
            after = page.offset
    return found


async def all_slots(storage: Storage) -> list[tuple[str, Slot]]:
    """Return the slot of every id, with its queue."""
    found = []
    for queue in QUEUES:
        exported = await storage.export(queue, limit=1000)
        found += [(queue, record.slot) for record in exported.records]
    return found
