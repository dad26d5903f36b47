"""Blocking form of dibs.flow.builder.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, overload

from dibs.client.calls.bound_job import Bound
from dibs.client.sync.thread_calls import run_enqueue
from dibs.client.sync.ticket import BlockingTicket
from dibs.flow.builder import Flow, OnFailure
from dibs.flow.context import Node

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

        The flow fails if this node does not complete. Raises Refused for a node of another flow.
        """
        return self._source.returns(node)

    def enqueue(self, *, connection: Any = None) -> BlockingTicket[Any]:
        """Enqueue the flow as one job of the queue `dibs.flows`, and return its ticket.

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
