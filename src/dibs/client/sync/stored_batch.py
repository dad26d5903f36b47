"""Blocking form of dibs.flow.batch.stored_batch.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any

from dibs.client.calls.bound_job import Bound
from dibs.client.sync.background_loop import iterate, run, run_with_connection
from dibs.client.sync.ticket import BlockingTicket
from dibs.flow.batch.results import MemberResult
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.batch.summary import BatchSummary
from dibs.model.results import CancelStatus


class BlockingStoredBatch:
    """Blocking form of StoredBatch, returned by its property `sync`.

    A batch in the storage, by its id; returned by `app.get_batch(id)`.
    """

    def __init__(self, source: StoredBatch) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the batch."""
        return self._source.id

    def enqueue_many(self, jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> int:
        """Add jobs, made with `task.bind(...)`, to the open batch, and return their number.

        The jobs are enqueued in segments of up to 1,000. `jobs` may be of any length, because only one
        segment is in memory at a time. An accepted segment runs to its end, whatever happens to this process.

        A handler of a member may add members until it returns. All other programs may add them until the
        batch is closed.

        Raises BatchClosed if the batch gets no further members, Refused with the index of a job that is not
        allowed, OutcomeUnknown, StorageError. A note of the error says how many jobs were enqueued before.
        """
        return run_with_connection(
            self._storage_handle, "await batch.enqueue_many(...)", self._source.enqueue_many(jobs)
        )

    def close(self) -> bool:
        """Close the batch: only its own members add further members, and it ends with the last of them.

        Return whether the batch is known and has not ended.
        """
        return run(self._storage_handle, "await batch.close(...)", self._source.close())

    def cancel(self) -> CancelStatus:
        """Close the batch and cancel its members that have not ended. `on_finish` runs, and the batch ends
        as cancelled.

        Returns "requested", the kind of the end of an ended batch, or "not_found".
        """
        return run(self._storage_handle, "await batch.cancel(...)", self._source.cancel())

    def ticket(self) -> BlockingTicket[BatchSummary]:
        """Return the ticket of the batch, whose result is the summary. Raises JobAbsent for an unknown id."""
        return BlockingTicket(run(self._storage_handle, "await batch.ticket(...)", self._source.ticket()))

    def progress(self) -> Iterator[BatchSummary]:
        """Yield the summary of the members so far, each time it was noted, until the batch has ended.

        Use it as `for summary in batch.progress():`. Raises JobAbsent, StorageError.
        """
        return iterate(self._storage_handle, "async for ... in batch.progress(...)", self._source.progress())

    def results(self) -> Iterator[MemberResult]:
        """Wait for the end of the batch, then yield the result or the error of each member.

        Use it as `for result in batch.results():`. The order is that of their enqueues. The outcomes of
        members are kept for `keep` after their ends. Raises JobAbsent, StorageError.
        """
        return iterate(self._storage_handle, "async for ... in batch.results(...)", self._source.results())
