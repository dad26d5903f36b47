"""The blocking twins of the async handles: what they say holds here, too.

Written by tools/make_blocking.py from the async source: change that.
"""

# ruff: noqa: SLF001 - a twin is the other half of its handle

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from dibs.client.app import Dibs, Until
from dibs.client.calls.bound_job import Bound
from dibs.client.calls.middleware import EnqueueMiddleware, RunMiddleware
from dibs.client.feed import FeedKind
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import CallSettings, JobSettings
from dibs.client.options.queue_settings import QueueSettings
from dibs.client.options.retention import Retention
from dibs.client.options.serde import Serde
from dibs.client.queue import Queue
from dibs.client.status import Status
from dibs.client.sync.background_loop import iterate, run, run_on_this_thread, run_with_connection
from dibs.client.sync.claims import BlockingFeed, BlockingReceiver
from dibs.client.task import Task, TaskEnqueuer
from dibs.client.ticket import DEFAULT_WAIT, Ticket
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    EnqueueStatus,
    FinishStatus,
    Pruned,
    RetryFailedStatus,
    State,
)
from dibs.storage.protocol import Storage

P = ParamSpec("P")
R = TypeVar("R")


class BlockingDibs:
    """Dibs, blocking."""

    def __init__(self, source: Dibs) -> None:
        self._source = source
        self._storage_handle = source._storage_handle

    @property
    def url(self) -> str:
        return self._source.url

    def open(self) -> None:
        return run(self._storage_handle, "await app.open(...)", self._source.open())

    def close(self) -> None:
        return run(self._storage_handle, "await app.close(...)", self._source.close())

    def __enter__(self) -> Self:
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def override_storage(self, storage: Storage) -> AbstractContextManager[None]:
        return self._source.override_storage(storage)

    def middleware(
        self, *, enqueue: EnqueueMiddleware | None = None, run: RunMiddleware | None = None
    ) -> None:
        return self._source.middleware(enqueue=enqueue, run=run)

    def queue(self, name: str, *, serde: Serde | None = None) -> BlockingQueue:
        return BlockingQueue(self._source.queue(name, serde=serde))

    def get_task(self, name: str) -> BlockingTask[Any, Any]:
        return BlockingTask(self._source.get_task(name))

    def work(
        self,
        queues: Sequence[str] | None = None,
        processes: int = 0,
        until: Until = "stopped",
        grace: float = 30.0,
    ) -> Any:
        return run_on_this_thread(
            self._storage_handle, "await app.work(...)", self._source.work(queues, processes, until, grace)
        )


class BlockingQueue:
    """Queue, blocking."""

    def __init__(self, source: Queue) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    @property
    def name(self) -> str:
        return self._source.name

    def enqueue(
        self, data: Any, *, connection: Any = None, **settings: Unpack[JobSettings]
    ) -> BlockingTicket[Any]:
        return BlockingTicket(
            run_with_connection(
                self._storage_handle,
                "await queue.enqueue(...)",
                self._source.enqueue(data, connection=connection, **settings),
            )
        )

    def enqueue_many(self, items: Iterable[Any], *, connection: Any = None) -> Sequence[BlockingTicket[Any]]:
        return [
            BlockingTicket(one)
            for one in run_with_connection(
                self._storage_handle,
                "await queue.enqueue_many(...)",
                self._source.enqueue_many(items, connection=connection),
            )
        ]

    def bind(self, data: Any, **settings: Unpack[JobSettings]) -> Bound:
        return self._source.bind(data, **settings)

    def ticket(self, id: str, revision: int) -> BlockingTicket[Any]:
        return BlockingTicket(self._source.ticket(id, revision))

    def receive(
        self, max_jobs: int = 10, lease: Seconds = 30, wait: Seconds | None = None
    ) -> BlockingReceiver:
        return BlockingReceiver(self._source.receive(max_jobs, lease, wait))

    def get(self, id: str) -> Status | None:
        return run(self._storage_handle, "await queue.get(...)", self._source.get(id))

    def list(self, state: State) -> Iterator[Status]:
        return iterate(self._storage_handle, "async for ... in queue.list(...)", self._source.list(state))

    def cancel(self, id: str, *, running: bool = False) -> CancelStatus:
        return run(self._storage_handle, "await queue.cancel(...)", self._source.cancel(id, running=running))

    def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> Sequence[CancelStatus]:
        return run(
            self._storage_handle,
            "await queue.cancel_many(...)",
            self._source.cancel_many(ids, running=running),
        )

    def amend(
        self,
        id: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        data: Any = UNSET,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | UnsetType = UNSET,
        retention: Retention | Seconds | UnsetType | None = UNSET,
    ) -> AmendStatus:
        return run(
            self._storage_handle,
            "await queue.amend(...)",
            self._source.amend(
                id,
                attributes=attributes,
                data=data,
                run_at=run_at,
                delay=delay,
                priority=priority,
                retention=retention,
            ),
        )

    def finish(
        self, id: str, revision: int, result: Any = None, *, error: BaseException | None = None
    ) -> FinishStatus:
        return run(
            self._storage_handle,
            "await queue.finish(...)",
            self._source.finish(id, revision, result, error=error),
        )

    def retry_failed(self, id: str) -> RetryFailedStatus:
        return run(self._storage_handle, "await queue.retry_failed(...)", self._source.retry_failed(id))

    def retry_failed_many(self, ids: Iterable[str]) -> Sequence[RetryFailedStatus]:
        return run(
            self._storage_handle, "await queue.retry_failed_many(...)", self._source.retry_failed_many(ids)
        )

    def forget(self, id: str) -> bool:
        return run(self._storage_handle, "await queue.forget(...)", self._source.forget(id))

    def pause(self) -> None:
        return run(self._storage_handle, "await queue.pause(...)", self._source.pause())

    def resume(self) -> None:
        return run(self._storage_handle, "await queue.resume(...)", self._source.resume())

    def counts(self) -> Counts:
        return run(self._storage_handle, "await queue.counts(...)", self._source.counts())

    def configure(self, **changes: Unpack[QueueSettings]) -> None:
        return run(self._storage_handle, "await queue.configure(...)", self._source.configure(**changes))

    def prune(self) -> Pruned:
        return run(self._storage_handle, "await queue.prune(...)", self._source.prune())

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> BlockingFeed:
        return BlockingFeed(self._source.events(after, ids=ids, kinds=kinds))


class BlockingTaskEnqueuer(Generic[P, R]):
    """TaskEnqueuer, blocking."""

    def __init__(self, source: TaskEnqueuer[P, R]) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingTicket[R]:
        return BlockingTicket(
            run_with_connection(
                self._storage_handle, "await task.enqueue(...)", self._source.enqueue(*args, **kwargs)
            )
        )

    def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return run(
            self._storage_handle,
            "await task.enqueue_and_wait(...)",
            self._source.enqueue_and_wait(*args, **kwargs),
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        return self._source.bind(*args, **kwargs)


class BlockingTask(BlockingTaskEnqueuer[P, R]):
    """Task, blocking."""

    def __init__(self, source: Task[P, R]) -> None:
        super().__init__(source)
        self._source: Task[P, R] = source

    @property
    def queue(self) -> BlockingQueue:
        return BlockingQueue(self._source.queue)

    def options(self, **settings: Unpack[CallSettings]) -> BlockingTaskEnqueuer[P, R]:
        return BlockingTaskEnqueuer(self._source.options(**settings))

    def enqueue_many(self, jobs: Iterable[Bound], *, connection: Any = None) -> Sequence[BlockingTicket[R]]:
        return [
            BlockingTicket(one)
            for one in run_with_connection(
                self._storage_handle,
                "await task.enqueue_many(...)",
                self._source.enqueue_many(jobs, connection=connection),
            )
        ]


class BlockingTicket(Generic[R]):
    """Ticket, blocking."""

    def __init__(self, source: Ticket[R]) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    @property
    def queue(self) -> str:
        return self._source.queue

    @property
    def id(self) -> str:
        return self._source.id

    @property
    def revision(self) -> int:
        return self._source.revision

    @property
    def verdict(self) -> EnqueueStatus | None:
        return self._source.verdict

    @property
    def repeated(self) -> bool:
        return self._source.repeated

    def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        return run(self._storage_handle, "await ticket.result(...)", self._source.result(wait))

    def status(self) -> Status:
        return run(self._storage_handle, "await ticket.status(...)", self._source.status())

    def cancel(self, *, running: bool = False) -> CancelStatus:
        return run(self._storage_handle, "await ticket.cancel(...)", self._source.cancel(running=running))
