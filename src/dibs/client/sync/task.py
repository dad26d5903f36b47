"""Blocking forms of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from dibs.client.calls.bound_job import Bound
from dibs.client.options.arguments import Seconds
from dibs.client.options.job_settings import CallSettings
from dibs.client.schedules import ScheduleStatus
from dibs.client.sync.background_loop import run, run_enqueue, run_with_connection
from dibs.client.sync.queue import BlockingQueue, BlockingTicket
from dibs.client.sync.twin import Attribute, BlockingHandle, documented_as, reads
from dibs.client.task import Task, TaskEnqueuer
from dibs.model.schedule import Overlap

P = ParamSpec("P")
R = TypeVar("R")


class BlockingTaskEnqueuer(BlockingHandle[TaskEnqueuer[P, R]], Generic[P, R]):
    """Blocking form of TaskEnqueuer, returned by its property `sync`."""

    @documented_as(TaskEnqueuer.enqueue)
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingTicket[R]:
        call = self._source.enqueue(*args, **kwargs)
        return BlockingTicket(run_enqueue(self._storage_handle, "await task.enqueue(...)", call))

    @documented_as(TaskEnqueuer.enqueue_and_wait)
    def enqueue_and_wait(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call = self._source.enqueue_and_wait(*args, **kwargs)
        return run(self._storage_handle, "await task.enqueue_and_wait(...)", call)

    @documented_as(TaskEnqueuer.bind)
    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        return self._source.bind(*args, **kwargs)


class BlockingTask(BlockingTaskEnqueuer[P, R]):
    """Blocking form of Task, returned by its property `sync`."""

    _source: Task[P, R]
    queue: Attribute[BlockingQueue] = reads("queue", BlockingQueue)

    def __init__(self, source: Task[P, R]) -> None:
        super().__init__(source)

    @documented_as(Task.options)
    def options(self, **settings: Unpack[CallSettings]) -> BlockingTaskEnqueuer[P, R]:
        return BlockingTaskEnqueuer(self._source.options(**settings))

    @documented_as(Task.enqueue_many)
    def enqueue_many(
        self, jobs: Iterable[Bound[Any]], *, connection: Any = None
    ) -> Sequence[BlockingTicket[R]]:
        call = self._source.enqueue_many(jobs, connection=connection)
        tickets = run_with_connection(self._storage_handle, "await task.enqueue_many(...)", call)
        return [BlockingTicket(ticket) for ticket in tickets]

    @documented_as(Task.schedule)
    def schedule(
        self,
        name: str,
        call: Bound[R] | None = None,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
        overlap: Overlap = "queue",
    ) -> ScheduleStatus:
        made = self._source.schedule(
            name, call, cron=cron, every=every, tz=tz, catch_up=catch_up, overlap=overlap
        )
        return run(self._storage_handle, "await task.schedule(...)", made)

    @documented_as(Task.ticket)
    def ticket(self, id: str, revision: int) -> BlockingTicket[R]:
        return BlockingTicket(self._source.ticket(id, revision))
