"""Blocking forms of async handles, whose modules are dibs.flow.builder, dibs.flow.stored_flow,
dibs.flow.batch.batch, dibs.flow.batch.stored_batch.

Written by tools/make_blocking.py from the async modules: change those.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from dibs.client.calls.bound_job import Bound
from dibs.client.sync.background_loop import (
    iterate,
    run,
    run_enqueue,
    run_with_connection,
)
from dibs.client.sync.queue import BlockingTicket
from dibs.flow.batch.batch import Batch
from dibs.flow.batch.plan import BatchSummary
from dibs.flow.batch.stored_batch import MemberResult, StoredBatch
from dibs.flow.builder import Chain, Flow, OnFailure
from dibs.flow.context import Node
from dibs.flow.stored_flow import FlowStatus, StoredFlow
from dibs.model.results import CancelStatus, RetryFailedStatus

R = TypeVar("R")


class BlockingFlow:
    """Blocking form of Flow, returned by its property `sync`.

    Jobs that wait for each other, returned by `app.flow()`. `enqueue` enqueues them together.
    """

    def __init__(self, source: Flow) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the flow."""
        return self._source.id

    @overload
    def add(
        self, job: Bound[R], *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[R]: ...

    @overload
    def add(
        self, job: Flow | BlockingFlow, *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[Any]: ...

    def add(
        self,
        job: Bound[Any] | Flow | BlockingFlow,
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: OnFailure = "stop",
    ) -> Node[Any]:
        """Add a job, made with `task.bind(...)` or `queue.bind(...)`, or another flow, and return its node.

            small = flow.add(resize.bind("a.png"))
            flow.add(send.bind("ada@example.org", subject=small.output))  # waits for `small`

        A node in the arguments of the call, also inside lists, tuples and dicts, is a parent of the new node,
        and its result arrives in its place. `after` are further parents. `on_failure` says what happens if
        one of them does not complete: "stop" skips the new node, "ignore" runs it. A node whose result is an
        argument must always complete.

        A job with an id of its own is shared: if its id is known already, the flow waits for that job.

        Raises Refused for a job or a node that is not allowed, and for too many nodes.
        """
        return self._source.add(job, after=after, on_failure=on_failure)

    def returns(self, node: Node[Any]) -> None:
        """Make the result of a node the result of the flow; without a call, the result is None.

            flow.returns(flow.add(resize.bind("a.png")))

        The flow fails if this node does not complete. Raises Refused for a node of another flow.
        """
        return self._source.returns(node)

    def enqueue(self, *, connection: Any = None) -> BlockingTicket[Any]:
        """Enqueue the flow as one job of the queue `dibs.flows`, and return its ticket.

            flow.add(resize.bind("a.png"))
            ticket = flow.enqueue()

        A worker of an app with flows=True then enqueues the nodes, each after its parents. With a
        `connection` of psycopg, SQLAlchemy or Django the flow is enqueued in its transaction. If the flow id
        is live or has completed, the flow stays as it is, and the ticket is that of the known flow.

        Raises Refused if the flow has no nodes or its plan is too large, OutcomeUnknown if the reply of the
        storage was lost, StorageError.
        """
        return BlockingTicket(
            run_enqueue(
                self._storage_handle, "await flow.enqueue(...)", self._source.enqueue(connection=connection)
            )
        )


class BlockingChain:
    """Blocking form of Chain, returned by its property `sync`.

    Calls of tasks that run one after the other, returned by `app.chain(...)`.

    Each call gets the result of the call before it as its first argument. The result of the chain is that of
    the last call.
    """

    def __init__(self, source: Chain) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def id(self) -> str:
        """Id of the flow that runs the calls."""
        return self._source.id

    def enqueue(self, *, connection: Any = None) -> BlockingTicket[Any]:
        """Enqueue the calls as one flow, and return its ticket. See Flow.enqueue.

        Example: `text = (app.chain(resize.bind("a.png"), send).enqueue()).result()`
        """
        return BlockingTicket(
            run_enqueue(
                self._storage_handle, "await chain.enqueue(...)", self._source.enqueue(connection=connection)
            )
        )


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

            status = app.get_flow("album-42").status()
            if status is not None:
                print([node.state for node in status.nodes])

        The states of open nodes are read from their jobs, 1,000 in one request. Raises StorageError,
        ValueError if the job is no flow.
        """
        return run(self._storage_handle, "await flow.status(...)", self._source.status())

    def ticket(self) -> BlockingTicket[Any]:
        """Return the ticket of the flow, as its enqueue did. Raises JobAbsent for an unknown flow."""
        return BlockingTicket(run(self._storage_handle, "await flow.ticket(...)", self._source.ticket()))

    def cancel(self) -> CancelStatus:
        """Cancel the flow: its evaluation cancels the nodes that are open, and ends the flow as cancelled.

            effect = app.get_flow("album-42").cancel()

        Jobs with an id of their own, which other flows may share, go on. Returns "cancelled" for a flow that
        had not started, "requested", the kind of the end of an ended flow, or "not_found".
        """
        return run(self._storage_handle, "await flow.cancel(...)", self._source.cancel())

    def wake(self) -> None:
        """Make the evaluation of the flow due at once. It comes by itself within a minute.

            app.get_flow("album-42").wake()

        Useful after a change that dibs does not notice, such as a cancel of the flow job by another program.
        """
        return run(self._storage_handle, "await flow.wake(...)", self._source.wake())

    def retry_failed(self) -> RetryFailedStatus:
        """Return a failed flow to its queue: completed nodes stay, and the others run again.

            effect = app.get_flow("album-42").retry_failed()

        Returns "queued"; "live" if the flow has not ended; "completed" or "cancelled" if it did not fail;
        "not_found".
        """
        return run(self._storage_handle, "await flow.retry_failed(...)", self._source.retry_failed())


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

            number = app.get_batch("mailing-7").enqueue_many([send.bind("cy@example.org")])

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

            is_open = app.get_batch("mailing-7").close()

        Return whether the batch is known and has not ended.
        """
        return run(self._storage_handle, "await batch.close(...)", self._source.close())

    def cancel(self) -> CancelStatus:
        """Close the batch and cancel its members that have not ended. `on_finish` runs, and the batch ends
        as cancelled.

            effect = app.get_batch("mailing-7").cancel()

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
