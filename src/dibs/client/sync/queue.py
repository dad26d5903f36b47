"""Blocking forms of queues, tickets, schedules and listings."""

from __future__ import annotations

from typing import Any, Final, Generic, Self, TypeVar

from dibs.client.listing import Listing
from dibs.client.options.arguments import Seconds
from dibs.client.queue import Queue
from dibs.client.schedules import Schedules
from dibs.client.status import Status
from dibs.client.stored_queue import StoredQueue
from dibs.client.sync.background_loop import next_item, run, run_enqueue, run_with_connection
from dibs.client.sync.claim import BlockingFeed, BlockingReceiver
from dibs.client.sync.twin import (
    Attribute,
    BlockingHandle,
    blocking,
    documented_as,
    each,
    iterating,
    passing,
    reads,
)
from dibs.client.ticket import DEFAULT_WAIT, Ticket
from dibs.model.results import EnqueueStatus

R = TypeVar("R")


class BlockingListing(BlockingHandle[Listing]):
    """Blocking form of Listing, returned by its property `sync`: `for status in queue.list("failed"):`."""

    cursor: Attribute[str | None] = reads("cursor")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Status:
        """Return the next status. Raises Refused for an unknown state or cursor."""
        return next_item(self._storage_handle, "async for", self._source)


class BlockingSchedules(BlockingHandle[Schedules]):
    """Blocking form of Schedules, returned by its property `sync`."""

    set: Final = blocking(Schedules.set)
    get: Final = blocking(Schedules.get)
    list: Final = blocking(Schedules.list)
    pause: Final = blocking(Schedules.pause)
    resume: Final = blocking(Schedules.resume)
    remove: Final = blocking(Schedules.remove)


class BlockingTicket(BlockingHandle[Ticket[R]], Generic[R]):
    """Blocking form of Ticket, returned by its property `sync`."""

    queue: Attribute[str] = reads("queue")
    id: Attribute[str] = reads("id")
    revision: Attribute[int] = reads("revision")
    verdict: Attribute[EnqueueStatus | None] = reads("verdict")
    repeated: Attribute[bool] = reads("repeated")
    progress: Final = iterating(Ticket.progress)
    output: Final = iterating(Ticket.output)
    status: Final = blocking(Ticket.status)
    cancel: Final = blocking(Ticket.cancel)
    signal: Final = blocking(Ticket.signal, runner=run_with_connection)

    @documented_as(Ticket.result)
    def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        return run(self._storage_handle, "await ticket.result(...)", self._source.result(wait))


class BlockingStoredQueue(BlockingHandle[StoredQueue]):
    """Blocking form of StoredQueue, returned by its property `sync`."""

    name: Attribute[str] = reads("name")
    schedules: Attribute[BlockingSchedules] = reads("schedules", BlockingSchedules)
    get: Final = blocking(StoredQueue.get)
    list: Final = passing(StoredQueue.list, BlockingListing)
    cancel: Final = blocking(StoredQueue.cancel)
    cancel_many: Final = blocking(StoredQueue.cancel_many)
    amend: Final = blocking(StoredQueue.amend)
    signal: Final = blocking(StoredQueue.signal, runner=run_with_connection)
    output: Final = iterating(StoredQueue.output)
    finish: Final = blocking(StoredQueue.finish)
    retry_failed: Final = blocking(StoredQueue.retry_failed)
    retry_failed_many: Final = blocking(StoredQueue.retry_failed_many)
    forget: Final = blocking(StoredQueue.forget)
    pause: Final = blocking(StoredQueue.pause)
    resume: Final = blocking(StoredQueue.resume)
    counts: Final = blocking(StoredQueue.counts)
    clear: Final = blocking(StoredQueue.clear)
    configure: Final = blocking(StoredQueue.configure)
    prune: Final = blocking(StoredQueue.prune)


class BlockingQueue(BlockingStoredQueue):
    """Blocking form of Queue, returned by its property `sync`."""

    _source: Queue

    def __init__(self, source: Queue) -> None:
        super().__init__(source)

    enqueue: Final = blocking(Queue.enqueue, BlockingTicket[Any], runner=run_enqueue)
    enqueue_and_wait: Final = blocking(Queue.enqueue_and_wait)
    enqueue_many: Final = blocking(Queue.enqueue_many, each(BlockingTicket[Any]), runner=run_with_connection)
    bind: Final = passing(Queue.bind)
    ticket: Final = passing(Queue.ticket, BlockingTicket[Any])
    receive: Final = passing(Queue.receive, BlockingReceiver)
    events: Final = passing(Queue.events, BlockingFeed)
