"""The removal of expired outcomes, request keys and events."""

from __future__ import annotations

from typing import Final

from dibs.model.results import PruneResult
from dibs.storage.protocol import Storage

#: Largest number of records that one call of the storage's `prune` removes.
BATCH_SIZE: Final = 1000


async def prune(storage: Storage, queue: str) -> PruneResult:
    """Remove all expired outcomes and request keys of a queue, and the events its log need not keep.

    Return the sums over all batches. A prune only frees space: every operation treats an expired record as
    absent, also before it is pruned.
    Raise StorageError or OutcomeUnknown; call it again to remove the rest.
    """
    outcomes = request_keys = events = 0
    while True:
        batch = await storage.prune(queue, BATCH_SIZE)
        outcomes += batch.outcomes
        request_keys += batch.request_keys
        events += batch.events
        if not batch.more:
            return PruneResult(outcomes=outcomes, request_keys=request_keys, events=events)
