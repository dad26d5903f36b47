"""Blocking form of dibs.client.ticket.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from dibs.client.options.durations import Seconds
from dibs.client.status import Status
from dibs.client.sync.background_loop import iterate, run
from dibs.client.ticket import DEFAULT_WAIT, Ticket
from dibs.model.results import CancelStatus, EnqueueStatus

R = TypeVar("R")


class BlockingTicket(Generic[R]):
    """Blocking form of Ticket, returned by its property `sync`.

    One enqueue of a job: its id and revision, its state, its result.
    """

    def __init__(self, source: Ticket[R]) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._source.queue

    @property
    def id(self) -> str:
        """Id of the job. If `repeated`, the id of the first enqueue with that request_key."""
        return self._source.id

    @property
    def revision(self) -> int:
        """Number of this enqueue. `queue.ticket(id, revision)` returns this ticket again, in any process.

        0 for a request that is "absent".
        """
        return self._source.revision

    @property
    def verdict(self) -> EnqueueStatus | None:
        """Effect of the enqueue: "queued", "updated" or "blocked".

        With Reject also "duplicate", "completed" or "failed", with Update(create=False) also "absent". None
        for a ticket of `queue.ticket(...)`.
        """
        return self._source.verdict

    @property
    def repeated(self) -> bool:
        """True if the request_key was known.

        The enqueue changed no job then, and this ticket has the answer of the first enqueue with that key.
        """
        return self._source.repeated

    def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        """Wait for the end of this enqueue and return the result of its job.

        `wait` is in seconds; None waits until the job ends. Only the run of this enqueue counts, or the run
        of a later enqueue that replaced it (contract 1, Done). The outcome is kept at least for `wait` and
        one minute.

        Raises JobFailed, JobCancelled, OutcomeNotKept if the outcome is no longer kept, JobAbsent at once for
        an Update(create=False) that found no live job, and WaitTimeout; after WaitTimeout the job stays in
        the queue.
        """
        return run(self._storage_handle, "await ticket.result(...)", self._source.result(wait))

    def progress(self) -> Iterator[Any]:
        """Yield each value that the job reports with `progress`, until this enqueue has ended.

        Use it as `for value in ticket.progress():`. A value that was reported before comes first. Of
        several reports in a row, only the latest may come. The last value of the run that ended comes last,
        if its outcome is kept. A retried run goes on with the values of its next run. Afterwards
        `ticket.result()` returns at once.

        Raises JobAbsent, StorageError.
        """
        return iterate(self._storage_handle, "async for ... in ticket.progress(...)", self._source.progress())

    def status(self) -> Status:
        """Return the state of this enqueue. It is `not_kept` after the outcome has expired."""
        return run(self._storage_handle, "await ticket.status(...)", self._source.status())

    def cancel(self, *, running: bool = False) -> CancelStatus:
        """Cancel the job of this ticket's id, and return the effect; see Queue.cancel."""
        return run(self._storage_handle, "await ticket.cancel(...)", self._source.cancel(running=running))
