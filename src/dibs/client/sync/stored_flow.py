"""Blocking form of dibs.flow.stored_flow.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from typing import Any

from dibs.client.sync.background_loop import run
from dibs.client.sync.ticket import BlockingTicket
from dibs.flow.stored_flow import FlowStatus, StoredFlow
from dibs.model.results import CancelStatus, RetryFailedStatus


class BlockingStoredFlow:
    """Blocking form of StoredFlow, returned by its property `sync`.

    A flow in the storage, by its id; returned by `app.get_flow(id)`.
    """

    def __init__(self, source: StoredFlow) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the flow."""
        return self._source.id

    def status(self) -> FlowStatus | None:
        """Return the state of the flow and of each node; None for an unknown flow.

        The states of open nodes are read from their jobs, 1,000 in one request. Raises StorageError,
        ValueError if the job is no flow.
        """
        return run(self._storage_handle, "await flow.status(...)", self._source.status())

    def ticket(self) -> BlockingTicket[Any]:
        """Return the ticket of the flow, as its enqueue did. Raises JobAbsent for an unknown flow."""
        return BlockingTicket(run(self._storage_handle, "await flow.ticket(...)", self._source.ticket()))

    def cancel(self) -> CancelStatus:
        """Cancel the flow: its evaluation cancels the nodes that are open, and ends the flow as cancelled.

        Jobs with an id of their own, which other flows may share, go on. Returns "cancelled" for a flow that
        had not started, "requested", the kind of the end of an ended flow, or "not_found".
        """
        return run(self._storage_handle, "await flow.cancel(...)", self._source.cancel())

    def wake(self) -> None:
        """Make the evaluation of the flow due at once. It comes by itself within a minute.

        Useful after a change that dibs does not notice, such as a cancel of the flow job by another program.
        """
        return run(self._storage_handle, "await flow.wake(...)", self._source.wake())

    def retry_failed(self) -> RetryFailedStatus:
        """Return a failed flow to its queue: completed nodes stay, and the others run again.

        Returns "queued"; "live" if the flow has not ended; "completed" or "cancelled" if it did not fail;
        "not_found".
        """
        return run(self._storage_handle, "await flow.retry_failed(...)", self._source.retry_failed())
