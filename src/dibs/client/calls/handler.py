"""What a queue's handler is and what it is allowed: the seam between an application and its workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import UNSET, Struct

from dibs.client.calls.middleware import RunMiddleware
from dibs.client.options.retention import Retention
from dibs.client.options.serde import Serde
from dibs.model.job import EndKind, Error, Job, Overrides
from dibs.model.retry import Backoff, Exponential
from dibs.model.schedule import Schedule

Executor = Literal["auto", "process"]


class HandlerLimits(Struct, frozen=True, kw_only=True):
    """What one run may take and how often a job may come back; None is without limit. Times are ms."""

    timeout: int | None = 60_000
    max_retries: int | None = 10
    max_timeouts: int | None = 3
    max_stalls: int | None = 3
    backoff: Backoff = Exponential(2, 300)

    def for_job(self, job: Job) -> HandlerLimits:
        """Return these limits with the job's own in their place."""
        return self.with_overrides(job.data.overrides)

    def with_overrides(self, own: Overrides | None) -> HandlerLimits:
        """Return these limits with those of `own` in their place."""
        if own is None:
            return self
        return HandlerLimits(
            timeout=self.timeout if own.timeout is UNSET else own.timeout,
            max_retries=self.max_retries if own.max_retries is UNSET else own.max_retries,
            max_timeouts=self.max_timeouts if own.max_timeouts is UNSET else own.max_timeouts,
            max_stalls=self.max_stalls if own.max_stalls is UNSET else own.max_stalls,
            backoff=self.backoff if own.backoff is UNSET else own.backoff,
        )


class Ending(Struct, kw_only=True):
    """The end of a run, not yet settled: what a hook under `@task.after` is called with, and may change."""

    queue: str
    id: str
    fence: int
    attempt: int
    kind: EndKind
    #: What the handler returned, where it completed; a hook may put another value in its place.
    result: Any = None
    error: Error | None = None
    #: Takes the place of the job's own where a hook sets it; the worker settles `retention.to_model()`.
    retention: Retention | None = None


class Handler(Struct, frozen=True, kw_only=True):
    """The one handler of a queue, as a worker needs it."""

    queue: str
    #: The user's function, plain or async.
    function: Callable[..., Any]
    is_async: bool
    serde: Serde
    #: Payload bytes and the job -> the positional and keyword arguments of `function`. May raise
    #: PermanentError. Called inside the run, with CURRENT set: `send(data, job)` gets current_job().
    arguments: Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]
    limits: HandlerLimits = HandlerLimits()
    #: Units of a worker process's 100 that one run takes.
    size: int = 10
    #: Queues with a higher one are served first.
    queue_priority: int = 100
    executor: Executor = "auto"
    #: Whether a job that fails for good gets a fail job: there is a handler for `queue!fail`.
    handles_failure: bool = False
    #: Called after an end, before it is settled; may change result and retention (see Ending).
    after: Callable[[Ending], Awaitable[None] | None] | None = None
    #: Stands around each call of the function.
    middleware: RunMiddleware | None = None
    #: Data and its payload -> nothing, or Refused where `arguments` could not be made of them: for whoever
    #: enqueues in a process that knows the handler.
    check: Callable[[Any, bytes], None] | None = None
    #: What makes it periodic: its worker plants the ticks.
    schedule: Schedule | None = None
