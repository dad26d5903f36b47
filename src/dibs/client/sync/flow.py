"""Blocking forms of flows, chains and batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar, overload

from dibs.client.calls.bound_job import Bound
from dibs.client.sync.background_loop import run_with_connection
from dibs.client.sync.queue import BlockingTicket
from dibs.client.sync.twin import (
    Attribute,
    BlockingContext,
    BlockingHandle,
    blocking,
    documented_as,
    iterating,
    passing,
    reads,
)
from dibs.flow.batch.batch import Batch
from dibs.flow.batch.plan import BatchSummary
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.builder import Chain, Flow, OnFailure
from dibs.flow.context import Node
from dibs.flow.stored_flow import StoredFlow

R = TypeVar("R")


class BlockingFlow(BlockingHandle[Flow]):
    """Blocking form of Flow, returned by its property `sync`."""

    id: Attribute[str] = reads("id")
    returns: Final = passing(Flow.returns)
    enqueue: Final = blocking(Flow.enqueue, BlockingTicket[Any])

    @overload
    def add(
        self, job: Bound[R], *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[R]: ...
    @overload
    def add(
        self, job: Flow | BlockingFlow, *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[Any]: ...
    @documented_as(Flow.add)
    def add(
        self,
        job: Bound[Any] | Flow | BlockingFlow,
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: OnFailure = "stop",
    ) -> Node[Any]:
        return self._source.add(job, after=after, on_failure=on_failure)


class BlockingChain(BlockingHandle[Chain]):
    """Blocking form of Chain, returned by its property `sync`."""

    id: Attribute[str] = reads("id")
    enqueue: Final = blocking(Chain.enqueue, BlockingTicket[Any])


class BlockingStoredFlow(BlockingHandle[StoredFlow]):
    """Blocking form of StoredFlow, returned by its property `sync`."""

    id: Attribute[str] = reads("id")
    status: Final = blocking(StoredFlow.status)
    ticket: Final = blocking(StoredFlow.ticket, BlockingTicket[Any])
    cancel: Final = blocking(StoredFlow.cancel)
    wake: Final = blocking(StoredFlow.wake)
    retry_failed: Final = blocking(StoredFlow.retry_failed)


class BlockingBatch(BlockingContext[Batch]):
    """Blocking form of Batch, returned by its property `sync`: `with app.sync.batch() as batch:`."""

    id: Attribute[str] = reads("id")
    ticket: Attribute[BlockingTicket[BatchSummary]] = reads("ticket", BlockingTicket)
    enqueue_many: Final = blocking(Batch.enqueue_many, runner=run_with_connection)
    close: Final = blocking(Batch.close)
    cancel: Final = blocking(Batch.cancel)
    progress: Final = iterating(Batch.progress)
    results: Final = iterating(Batch.results)


class BlockingStoredBatch(BlockingHandle[StoredBatch]):
    """Blocking form of StoredBatch, returned by its property `sync`."""

    id: Attribute[str] = reads("id")
    enqueue_many: Final = blocking(StoredBatch.enqueue_many, runner=run_with_connection)
    close: Final = blocking(StoredBatch.close)
    cancel: Final = blocking(StoredBatch.cancel)
    ticket: Final = blocking(StoredBatch.ticket, BlockingTicket[BatchSummary])
    progress: Final = iterating(StoredBatch.progress)
    results: Final = iterating(StoredBatch.results)
