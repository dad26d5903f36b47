"""The requests of evaluations. Evaluations that run at the same time share them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from dibs.client.connection.open_storage import OpenStorage
from dibs.model.job import Slot
from dibs.model.requests import End, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage

#: The most jobs of a call that joins the requests of other calls. A call with more is a request of its own.
MOST_SHARED: Final = 16


class SharedRequests:
    """An open storage whose reads, enqueues and ends of few jobs join those of other evaluations.

    The calls that arrive while a request is in flight form the next request, so a hundred evaluations of
    small flows send a few requests. It forwards all other verbs to the storage, so it serves wherever a
    Storage is expected.
    """

    def __init__(self, opened: OpenStorage) -> None:
        self._bounded = opened.bounded
        self._coalesced = opened.coalesced

    @classmethod
    def of(cls, opened: OpenStorage) -> Storage:
        """Return the shared requests of an open storage, typed as a storage."""
        return cast("Storage", cls(opened))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bounded, name)

    async def get(self, queue: str, ids: Sequence[str]) -> Sequence[Slot]:
        """Return the slots of ids. Raises StorageError."""
        if len(ids) > MOST_SHARED:
            return await self._bounded.get(queue, ids)
        return await _gather([self._coalesced.get(queue, id) for id in ids])

    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue requests, not as one atomic step. Raises Refused, OutcomeUnknown, StorageError."""
        if len(requests) > MOST_SHARED:
            return await self._bounded.enqueue(queue, requests)
        return await _gather([self._coalesced.enqueue(queue, request) for request in requests])

    async def end_run(self, id: str, fence: int, end: End) -> bool:
        """End a handed-off flow by its fence. Return False if this run has ended in another way."""
        settlement = Settlement(id=id, fence=fence, action=end)
        return (await self._coalesced.settle(FLOWS, settlement)).status == "done"


async def _gather(calls: list[Any]) -> Sequence[Any]:
    """Return the answers of calls, in order. A single call needs no task."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
