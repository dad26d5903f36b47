"""Removing what has expired."""

from __future__ import annotations

from typing import Final

from dibs.model.results import PruneResult
from dibs.storage.protocol import Storage

#: How many records one step removes.
STEP: Final = 1000


async def prune(storage: Storage, queue: str) -> PruneResult:
    """Remove all expired outcomes and request keys of the queue and what its log need not keep.

    Returns the sums. Nobody waits for it: what has expired is absent to every verb already. Raises
    StorageError, OutcomeUnknown; then the rest is for the next time.
    """
    outcomes = request_keys = events = 0
    while True:
        step = await storage.prune(queue, STEP)
        outcomes += step.outcomes
        request_keys += step.request_keys
        events += step.events
        if not step.more:
            return PruneResult(outcomes=outcomes, request_keys=request_keys, events=events)
