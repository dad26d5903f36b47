"""Blocking forms of async handles, whose modules are dibs.client.task.

Written by tools/make_blocking.py from the async modules: change those.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from dibs.client.calls.bound_job import Bound
from dibs.client.options.arguments import Seconds
from dibs.client.options.job_settings import CallSettings
from dibs.client.schedules import ScheduleStatus
from dibs.client.sync.background_loop import (
    run,
    run_enqueue,
    run_with_connection,
)
from dibs.client.sync.queue import BlockingQueue, BlockingTicket
from dibs.client.task import Task, TaskEnqueuer

P = ParamSpec("P")
R = TypeVar("R")


class BlockingTaskEnqueuer(Generic[P, R]):
    """Blocking form of TaskEnqueuer, returned by its property `sync`.

    A task with settings for its jobs, returned by `task.options(...)`.

    Its methods take the arguments of the function; settings and arguments never mix.
    """

    def __init__(self, source: TaskEnqueuer[P, R]) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> BlockingTicket[R]:
        """Enqueue a call of the function and return its ticket.

            ticket = send.enqueue("ada@example.org", subject="Welcome")

        The arguments are encoded and decoded once, as a worker will decode them: arguments that do not fit
        the type hints, or would arrive changed, are refused. Use `task.options(...)` for settings of the
        job; without it the job may start at once, has a generated id and priority 0, and uses the limits of
        the task. A call with `on_conflict=Update(create=False)` takes no arguments.

        Raises Refused naming the parameter or setting at fault, OutcomeUnknown if the reply of the storage
        was lost, StorageError.
        """
        return BlockingTicket(
            run_enqueue(
                self._storage_handle, "await task.enqueue(...)", self._source.enqueue(*args, **kwargs)
            )
        )

    def enqueue_and_wait(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a call, wait for the job, and return its result.

            text = send.enqueue_and_wait("ada@example.org")

        It waits for `wait` seconds of `task.options(wait=...)`, by default 60. Raises the errors of `enqueue`
        and of `ticket.result`. After WaitTimeout the job stays in the queue.
        """
        return run(
            self._storage_handle,
            "await task.enqueue_and_wait(...)",
            self._source.enqueue_and_wait(*args, **kwargs),
        )

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """Return a call to be enqueued later: with `enqueue_many`, in a flow, or as a job's follow-up.

            send.enqueue_many([send.bind(to) for to in ("ada@example.org", "bo@example.org")])

        The call that takes the Bound raises the errors of `enqueue`; `bind` itself raises none.
        """
        return self._source.bind(*args, **kwargs)


class BlockingTask(BlockingTaskEnqueuer[P, R]):
    """Blocking form of Task, returned by its property `sync`.

    A function declared with @app.task. Call it to run it here, or enqueue it for a worker.
    """

    def __init__(self, source: Task[P, R]) -> None:
        super().__init__(source)
        self._source: Task[P, R] = source

    @property
    def queue(self) -> BlockingQueue:
        """The queue of the task, which can pause, count, list and cancel its jobs."""
        return BlockingQueue(self._source.queue)

    def options(self, **settings: Unpack[CallSettings]) -> BlockingTaskEnqueuer[P, R]:
        """Return the task with settings for its jobs: `task.options(delay=60).enqueue(...)`.

        The settings, each with its default:

        - `id`: id of the job, 1 to 512 bytes; default: a generated one, which sorts by time.
        - `delay`: seconds until the job may start, text such as "5m", or a timedelta. Default 0.
        - `run_at`: datetime with a time zone from which the job may start; excludes `delay`.
        - `priority`: -1000 to 1000; a higher number starts first. Default 0.
        - `on_conflict`: Update(...) or Reject(...): how to treat an id that is known already.
          Update(create=False) takes no arguments, and changes nothing for an id without a live job.
          Default Update().
        - `request_key`: text of at most 128 bytes. A second enqueue with the same key within an hour
          changes nothing and gets the ticket of the first. Default: no key.
        - `key`: key of the job, to which `per_key` and `key_rate` of the queue apply: text of 1 to 128 bytes,
          a whole number, or None for no key. Default: the key that the option `key` of the task derives.
        - `attributes`: mapping of text to JSON values, for listings and other programs. Default: empty.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention. Default: the
          retention of the queue.
        - `timeout`, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`: replace the limits of the
          handler for this job; the units are the same. Default: the limits of the handler.
        - `start_by`: datetime with a time zone from which no run may start, or seconds from now by the clock
          of this machine. A worker that claims the job later cancels it. Default: no deadline.
        - `lease`: least seconds of the lease if the job is claimed with `queue.receive`, from the claim on.
          Default: the lease of the receiver. Workers ignore it: they renew a lease of their own.
        - `wait`: seconds that `enqueue_and_wait` waits; None waits until the job ends. Default 60.
        - `connection`: connection of psycopg, SQLAlchemy or Django. The job is enqueued in its transaction.
          Default: none.

        Raises Refused for a setting that does not exist.
        """
        return BlockingTaskEnqueuer(self._source.options(**settings))

    def enqueue_many(
        self, jobs: Iterable[Bound[Any]], *, connection: Any = None
    ) -> Sequence[BlockingTicket[R]]:
        """Enqueue many calls, made with `task.bind(...)` or `task.options(...).bind(...)`, in their order.

            tickets = send.enqueue_many(send.bind(to) for to in ("ada@example.org", "bo@example.org"))

        A `connection` of psycopg, SQLAlchemy or Django enqueues the jobs in its transaction. All jobs are
        checked before the first is sent: raises BatchRefused with one Refused for each bad job.
        """
        return [
            BlockingTicket(one)
            for one in run_with_connection(
                self._storage_handle,
                "await task.enqueue_many(...)",
                self._source.enqueue_many(jobs, connection=connection),
            )
        ]

    def schedule(
        self,
        name: str,
        call: Bound[R] | None = None,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
    ) -> ScheduleStatus:
        """Run a call of the task again and again, by a schedule with a name, and return the schedule.

            report.schedule("tenant-7", report.bind("tenant-7"), cron="0 3 * * *", tz="Europe/Berlin")

        `call` is made with `task.bind(...)` or `task.options(...).bind(...)`; default: a call without
        arguments. The same name again changes the schedule in place. `task.queue.schedules` lists, pauses,
        resumes and removes schedules; see its method `set` for the arguments and errors.
        """
        return run(
            self._storage_handle,
            "await task.schedule(...)",
            self._source.schedule(name, call, cron=cron, every=every, tz=tz, catch_up=catch_up),
        )

    def ticket(self, id: str, revision: int) -> BlockingTicket[R]:
        """Return the ticket of an earlier enqueue by its id and revision, also one of another process.

            text = send.ticket(ticket.id, ticket.revision).result()

        Its `result()` has the return type of the function: `charge.ticket(id, revision).result()`.
        Raises Refused for an id that is no text, or a revision that is no number.
        """
        return BlockingTicket(self._source.ticket(id, revision))
