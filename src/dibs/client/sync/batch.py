"""Blocking form of dibs.flow.batch.batch.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from dibs.client.calls.bound_job import Bound
from dibs.client.sync.background_loop import iterate, run, run_with_connection
from dibs.client.sync.ticket import BlockingTicket
from dibs.flow.batch.batch import Batch
from dibs.flow.batch.results import MemberResult
from dibs.flow.batch.summary import BatchSummary
from dibs.model.results import CancelStatus


class BlockingBatch:
    """Blocking form of Batch, returned by its property `sync`.

    Jobs with callbacks after their end, returned by `app.batch()`.

    Use it as `with app.batch(...) as batch:`. The begin of the block enqueues the batch, and its end
    closes it. After an exception in the block the batch stays open for `open_for`, so that the program may
    add the rest of the members under the same id.
    """

    def __init__(self, source: Batch) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the batch."""
        return self._source.id

    @property
    def ticket(self) -> BlockingTicket[BatchSummary]:
        """The ticket of the batch; its result is the summary. Raises NotRunning before the `with`."""
        return BlockingTicket(self._source.ticket)

    def __enter__(self) -> Self:
        """Enqueue the batch. With the id of an open batch, members are added to that batch."""
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the batch, unless the block raised an exception."""
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def enqueue_many(self, jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> int:
        """Add jobs, made with `task.bind(...)`, and return their number. See StoredBatch.enqueue_many."""
        return run_with_connection(
            self._storage_handle, "await batch.enqueue_many(...)", self._source.enqueue_many(jobs)
        )

    def close(self) -> bool:
        """Close the batch: it gets no further members. Return whether it has not ended."""
        return run(self._storage_handle, "await batch.close(...)", self._source.close())

    def cancel(self) -> CancelStatus:
        """Close the batch and cancel its members that have not ended. See StoredBatch.cancel."""
        return run(self._storage_handle, "await batch.cancel(...)", self._source.cancel())

    def progress(self) -> Iterator[BatchSummary]:
        """Yield the summary of the members so far, each time it was noted, until the batch has ended."""
        return iterate(self._storage_handle, "async for ... in batch.progress(...)", self._source.progress())

    def results(self) -> Iterator[MemberResult]:
        """Wait for the end of the batch, then yield each member with its result or its error.

        Use it as `for result in batch.results():`. See StoredBatch.results.
        """
        return iterate(self._storage_handle, "async for ... in batch.results(...)", self._source.results())
