"""Large writes: batches of requests whose request keys the storage keeps packed, 16 bytes each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from dibs.model.request_columns import RequestColumns
from dibs.model.results import EnqueueStatus


class StoredMembers(NamedTuple):
    """A page of the members of a key set, with the statuses of their requests."""

    statuses: dict[bytes, EnqueueStatus]
    #: The number of the last batch of the page; 0 for a set without batches.
    number: int
    #: True if the set may have more batches after this page.
    more: bool


@runtime_checkable
class KeySets(Protocol):
    """The methods of a storage that keeps key sets.

    A key set has the request keys of one writer, for example of one partition of a write of Spark. Writers of
    the same set number their batches, each from the last number it has read. So two writers that run at the
    same time send the same number, and only one of them succeeds.
    """

    async def read_key_set(
        self, queue: str, name: str, *, after: int = 0, now: int | None = None
    ) -> StoredMembers:
        """Return the members of the batches above the number `after`. Expired members are left out.

        If the set has expired and was begun again since, its batches may be read from the first one.
        """
        ...

    async def enqueue_batch(
        self, queue: str, name: str, number: int, columns: RequestColumns, *, now: int | None = None
    ) -> Sequence[EnqueueStatus] | None:
        """Enqueue the requests in one atomic step, and add the batch with their keys to the key set.

        Return their statuses, or None if the set has a batch of this number already: then nothing is
        enqueued, and the caller reads the set and sends the members that it lacks. The keys are remembered
        for the `request_key_age` of the queue. Raise the errors of `enqueue`.
        """
        ...
