"""The handler of a queue, its limits and its middleware, as applications declare and workers use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Final, Literal

from attrs import frozen
from msgspec import UNSET, Struct, structs

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.current_job import CurrentJob
from dibs.client.options.job_settings import Retention
from dibs.client.options.serde import Serde
from dibs.errors import Refused, Retry
from dibs.model.check_jobs import check_follow_ups
from dibs.model.job import EndKind, Error, Job
from dibs.model.limits import START_COST
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest, FollowUp, SettingsPatch
from dibs.model.retry import Backoff, Exponential
from dibs.model.schedule import Schedule

#: Called with the name of a queue and the requests of an enqueue; yields the requests that are sent.
EnqueueMiddleware = Callable[
    [str, Sequence[EnqueueRequest]], AbstractAsyncContextManager[Sequence[EnqueueRequest]]
]
#: Called with the current job before its handler, on the same asyncio task or thread.
RunMiddleware = Callable[[CurrentJob], AbstractContextManager[object]]


def compose_enqueue(outer: EnqueueMiddleware, inner: EnqueueMiddleware | None) -> EnqueueMiddleware:
    """Return a middleware that passes the requests through `outer`, then through `inner`."""
    if inner is None:
        return outer

    @asynccontextmanager
    async def both(queue: str, requests: Sequence[EnqueueRequest]) -> AsyncIterator[Sequence[EnqueueRequest]]:
        async with outer(queue, requests) as passed, inner(queue, passed) as sent:
            yield sent

    return both


def compose_run(outer: RunMiddleware, inner: RunMiddleware | None) -> RunMiddleware:
    """Return a middleware that enters `outer` before `inner`, and leaves it after `inner`."""
    if inner is None:
        return outer

    @contextmanager
    def both(job: CurrentJob) -> Iterator[None]:
        with outer(job), inner(job):
            yield

    return both


Executor = Literal["auto", "process"]


class HandlerLimits(Struct, frozen=True, kw_only=True):
    """Timeout and retries of a job; None is no limit.

    It is a msgspec Struct, and not an attrs class, because each job with overrides makes one.
    """

    #: Time that one run may take, in ms.
    timeout: int | None = 60_000
    #: Retries after an error.
    max_retries: int | None = 10
    #: Retries after a timeout.
    max_timeouts: int | None = 3
    #: Retries after the worker process died or its lease expired.
    max_stalls: int | None = 3
    #: Delay before a retry.
    backoff: Backoff = Exponential(2, 300)

    def in_seconds(self) -> dict[str, Any]:
        """Return the limits by name, with the timeout in seconds."""
        timeout = None if self.timeout is None else self.timeout / 1000
        return {**structs.asdict(self), "timeout": timeout}

    def with_overrides(self, own: Overrides | None) -> HandlerLimits:
        """Return these limits with those replaced that the job itself sets in `own`."""
        if own is None:
            return self
        return HandlerLimits(
            timeout=self.timeout if own.timeout is UNSET else own.timeout,
            max_retries=self.max_retries if own.max_retries is UNSET else own.max_retries,
            max_timeouts=self.max_timeouts if own.max_timeouts is UNSET else own.max_timeouts,
            max_stalls=self.max_stalls if own.max_stalls is UNSET else own.max_stalls,
            backoff=self.backoff if own.backoff is UNSET else own.backoff,
        )


#: Capacity units of a worker process.
PROCESS_UNITS: Final = 100
#: Default `size` of a handler: a process runs 10 jobs on threads, or in processes of their own, at a time.
SIZE: Final = 10
#: Default `size` of an `async def` on the event loop: 100 at a time, because most of these functions wait for
#: a server, and a waiting one holds no thread.
ASYNC_SIZE: Final = 1

DEFAULT_LIMITS: Final = HandlerLimits()
#: The limits of failure handlers. Their delays add up to 26 hours, for errors and for timeouts alike, so a
#: failure handler survives a day on which a system that it calls is down.
FAILURE_LIMITS: Final = HandlerLimits(max_retries=110, max_timeouts=110, backoff=Exponential(10, 900))


class Ending(Struct, kw_only=True):
    """The end of a run, before the worker stores it. The hook of `@task.after` gets it and may change it."""

    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    fence: int
    """Number of the run, which grows with each claim of the id."""
    attempt: int
    """Number of the claim of the job, from 1."""
    kind: EndKind
    """Kind of the end: "completed", "failed" or "cancelled"."""
    result: Any = None
    """Return value of a handler that completed. A hook may replace it."""
    error: Error | None = None
    """Error of a handler that failed, or the reason of a cancellation that has one."""
    retention: Retention | None = None
    """Set by a hook to replace the retention of the job."""
    data: Any = None
    """Data of the job, decoded by the queue's serde; for a task {"args": [...], "kwargs": {...}}.

    Bytes if the serde cannot decode it."""
    limits: Mapping[str, Any] = {}
    """Limits of the run: `timeout` in seconds, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`.

    They are those of the handler, or of the job where it sets its own. None is no limit."""
    follow_ups: tuple[FollowUp, ...] = ()
    """Jobs that `then` has added."""

    def then(self, bound: Bound[Any]) -> None:
        """Enqueue a job, made with `bind`, in the same atomic step as the end of this run.

            ending.then(send.bind("bo@example.org"))

        Raises Refused if the job is not allowed, or if the run was cancelled. If the storage cannot enqueue
        to the job's queue in this step (it lacks the capability `cross_queue`), the run fails with that
        reason.
        """
        if self.kind == "cancelled":
            raise Refused(
                "a cancelled run has no follow-ups; enqueue the job in the hook instead", field="then"
            )
        follow_up = bound.as_follow_up()
        check_follow_ups([follow_up])
        self.follow_ups = (*self.follow_ups, follow_up)


@frozen(kw_only=True, eq=False)
class Handler:
    """The handler of a queue: a function of the application, and how a worker calls it."""

    queue: str
    #: The function of the application, `def` or `async def`.
    function: Callable[..., Any]
    is_async: bool
    serde: Serde
    #: Returns the positional and keyword arguments of `function` for a job. Raises PayloadMismatch if the
    #: payload does not fit. The worker sets CURRENT_JOB before the call, because a handler `send(data, job)`
    #: gets current_job() as its second argument.
    decode_arguments: Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]
    limits: HandlerLimits = DEFAULT_LIMITS
    #: Capacity units one run takes, of the PROCESS_UNITS of a worker process.
    size: int = SIZE
    #: A worker serves queues with a higher number first.
    queue_priority: int = 100
    #: The amount that the rates of the queue count for the start of a run, in the unit of `CurrentJob.spent`.
    unit: int = START_COST
    executor: Executor = "auto"
    #: True if a result that cannot be encoded fails the run.
    strict_results: bool = False
    #: The classes of errors that are retried, and those that are not.
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    no_retry_on: tuple[type[BaseException], ...] = ()
    #: The lowest level of log records that go to the output of a run; None for none.
    log_level: int | None = None
    #: The hook of `@task.after`: called with the end of each run before the worker stores it.
    after: Callable[[Ending], Awaitable[None] | None] | None = None
    #: The middleware of `app.middleware(run=...)`: entered around each call of the function.
    middleware: RunMiddleware | None = None
    #: Called by an enqueue, with the data and the payload, if this process declares the handler. Raises
    #: Refused for a payload that `decode_arguments` could not decode.
    check_data: Callable[[Any, bytes], None] | None = None
    #: Called by an enqueue, with the data. Returns it in a form that the serde encodes. None if the type hint
    #: of the data needs no conversion.
    dump_data: Callable[[Any], Any] | None = None
    #: Called with the result of a run, as `dump_data` with data.
    dump_result: Callable[[Any], Any] | None = None
    #: Called when a worker starts. Raises BadHandler if a type hint does not exist, or cannot be sent.
    check_hints: Callable[[], None] | None = None
    #: Schedule of a periodic task; None for other handlers. The worker enqueues a job for each tick.
    schedule: Schedule | None = None
    #: The settings that the code declares for the queue. A worker writes them to the storage when it starts.
    queue_settings: SettingsPatch | None = None

    def retries(self, error: BaseException) -> bool:
        """Return whether the handler retries an error of this class. `Retry` asks for a retry by itself."""
        is_listed = isinstance(error, self.retry_on) and not isinstance(error, self.no_retry_on)
        return is_listed or isinstance(error, Retry)

    @property
    def runs_per_process(self) -> int:
        """The number of runs of this handler that fit into a worker process at a time."""
        return PROCESS_UNITS // self.size
