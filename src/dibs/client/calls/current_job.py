"""The job of the running handler: its fields, its progress and its follow-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Protocol

import msgspec

from dibs.client.calls.bound_job import Bound
from dibs.client.options.durations import utc_datetime
from dibs.client.options.serde import JSON
from dibs.errors import LeaseLost, NotRunning, Refused
from dibs.model.check_jobs import check_follow_ups
from dibs.model.check_values import check_bytes
from dibs.model.job import Job
from dibs.model.limits import LIMITS
from dibs.model.requests import FollowUp
from dibs.model.results import ReportStatus
from dibs.storage.capabilities import Capabilities


class RunStorage(Protocol):
    """The part of a storage that a running job uses.

    A child process of the executor "process" has no connection to the storage. It implements this protocol
    with messages to its worker.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def report(self, queue: str, id: str, fence: int, progress: bytes) -> ReportStatus: ...


class CurrentJob:
    """The job of the running handler, returned by `current_job()`.

    In an `async def` handler await `progress`; in a `def` handler it blocks.
    """

    #: Jobs that the worker enqueues in the same atomic step as the completion of this run.
    follow_ups: tuple[FollowUp, ...] = ()

    def __init__(
        self,
        storage: RunStorage,
        queue: str,
        job: Job,
        loop: asyncio.AbstractEventLoop,
        deadline: float | None,
        resources: Any = None,
    ) -> None:
        run = job.run
        if run is None:
            raise NotRunning(f"{queue}/{job.id} is not active, so it has no CurrentJob; claim the job first")
        self._storage = storage
        self._loop = loop
        self._job = job
        self._cancelled = run.cancel_requested
        self.queue: str = queue
        """Name of the queue."""
        self.id: str = job.id
        """Id of the job."""
        self.fence: int = run.fence
        """Number of this run, which grows with each claim of the id.

        Pass it to other systems, so that they can refuse writes of an earlier run.
        """
        self.deadline: float | None = deadline
        """Time of the timeout, in seconds of time.monotonic(); None for a run without a timeout."""
        self.resources: Any = resources
        """The value that the function under @app.lifespan yielded in this process."""

    def __repr__(self) -> str:
        return f"<CurrentJob {self.queue}/{self.id} fence {self.fence}>"

    @property
    def attempt(self) -> int:
        """Number of this claim of the job, from 1."""
        return self._job.attempts

    @property
    def retries(self) -> int:
        """Number of times the job returned to the queue after an error."""
        return self._job.retries

    @property
    def stalls(self) -> int:
        """Number of times the job returned to the queue because its worker was gone."""
        return self._job.stalls

    @property
    def timeouts(self) -> int:
        """Number of times the job returned to the queue after a timeout."""
        return self._job.timeouts

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the job at the time of the claim."""
        return {name: msgspec.json.decode(raw) for name, raw in self._job.data.attributes.items()}

    @property
    def enqueued_at(self) -> datetime:
        """Time of the enqueue, in UTC."""
        return utc_datetime(self._job.enqueued_at)

    @property
    def run_at(self) -> datetime:
        """Time from which the job might start, in UTC."""
        return utc_datetime(self._job.run_at)

    @property
    def cancelled(self) -> bool:
        """True after a cancel of this run. The handler may finish; the job does not return to the queue."""
        return self._cancelled

    def request_cancel(self) -> None:
        """Set `cancelled`. The worker calls it; to cancel a job use `queue.cancel(id, running=True)`."""
        self._cancelled = True

    def progress(self, value: Any) -> Awaitable[None]:
        """Store the progress of the job, any JSON value of at most 1 MiB. `queue.get(id)` returns it.

        Raises LeaseLost if the lease of the run has ended, Refused if JSON cannot encode the value.
        """
        raw = JSON.encode(value)
        check_bytes("progress", raw, LIMITS.progress)
        return self._run_on_worker_loop(self._report_progress(raw))

    async def _report_progress(self, raw: bytes) -> None:
        if await self._storage.report(self.queue, self.id, self.fence, raw) == "lost":
            raise LeaseLost(f"{self.queue}/{self.id}: the lease has ended, so the progress was not stored")

    def then(self, bound: Bound) -> None:
        """Enqueue a job, made with `bind`, in the same atomic step as the completion of this run.

        Raises Refused if the job is not allowed, or if it is for another queue and the storage does not have
        the capability `cross_queue`.
        """
        if bound.queue != self.queue and not self._storage.capabilities.cross_queue:
            raise Refused(
                f"this storage cannot enqueue to {bound.queue!r} in one step with the end of a job of "
                f"{self.queue!r}; enqueue it in the handler instead",
                field="then",
            )
        follow_up = bound.as_follow_up()
        check_follow_ups([follow_up])
        self.follow_ups = (*self.follow_ups, follow_up)

    def _run_on_worker_loop(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Start `work` on the event loop of the worker, and return an awaitable for its end.

        A `def` handler runs on a thread without an event loop. There, wait for `work` before returning.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
            return _CompletedAwaitable()
        if running is self._loop:
            return work
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class _CompletedAwaitable:
    """The awaitable that `progress` returns in a `def` handler: the progress is stored already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


#: The job of the running handler, for `current_job()`. The worker sets it before it decodes the payload.
CURRENT_JOB: Final[ContextVar[CurrentJob]] = ContextVar("dibs_current_job")


def current_job() -> CurrentJob:
    """Return the job of the running handler. Raises NotRunning outside a handler."""
    try:
        return CURRENT_JOB.get()
    except LookupError:
        raise NotRunning(
            "no job is running here: call current_job() inside a handler that a worker runs"
        ) from None
