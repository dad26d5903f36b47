"""Bringing back the jobs of workers that are gone."""

from __future__ import annotations

from typing import Final

from dibs.model.answers import Reaped
from dibs.storage.protocol import Storage

#: How many jobs one step brings back.
STEP: Final = 1000


async def reap(storage: Storage, queue: str) -> list[Reaped]:
    """Bring back every job of the queue under an expired lease, and say which (contract 3, Leases).

    A step that finds nothing costs the storage O(1). Raises StorageError, OutcomeUnknown; then the rest
    is for the next time.
    """
    found: list[Reaped] = []
    while True:
        step = await storage.reap(queue, STEP)
        found.extend(step)
        if len(step) < STEP:
            return found
