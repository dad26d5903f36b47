"""What a handler may ask and tell about the job it is running."""

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
from dibs.model.check_jobs import check_then
from dibs.model.check_values import check_bytes
from dibs.model.job import Job
from dibs.model.limits import LIMITS
from dibs.model.requests import FollowUp
from dibs.model.results import ReportStatus
from dibs.storage.capabilities import Capabilities


class RunStorage(Protocol):
    """The part of a storage that a running job needs; a worker's child process may put its own there."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def report(self, queue: str, id: str, fence: int, progress: bytes) -> ReportStatus: ...


class CurrentJob:
    """The job that is running here: in a `def` handler its methods block, in `async def` await them."""

    #: What is enqueued in the same step as the completion.
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
            raise NotRunning(f"{queue}/{job.id} is not active")
        self._storage = storage
        self._loop = loop
        self._job = job
        self._cancelled = run.cancel_requested
        self.queue = queue
        self.id = job.id
        #: Grows with every claim of this id: pass it on, and outside systems can refuse a late writer.
        self.fence = run.fence
        #: When the run is over its timeout, by time.monotonic(), in seconds; None is never.
        self.deadline = deadline
        #: What the function under @app.lifespan yielded in this process.
        self.resources = resources

    @property
    def attempt(self) -> int:
        """Which claim of the job this is, from 1."""
        return self._job.attempts

    @property
    def retries(self) -> int:
        """How often it came back because of an error."""
        return self._job.retries

    @property
    def stalls(self) -> int:
        """How often it came back because what ran it was gone."""
        return self._job.stalls

    @property
    def timeouts(self) -> int:
        """How often it came back because a run took too long."""
        return self._job.timeouts

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What was enqueued with it, or amended since, up to its claim."""
        return {name: msgspec.json.decode(raw) for name, raw in self._job.data.attributes.items()}

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued, in UTC."""
        return utc_datetime(self._job.enqueued_at)

    @property
    def run_at(self) -> datetime:
        """From when on it was due, in UTC."""
        return utc_datetime(self._job.run_at)

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for this run to stop. It may finish, but it will not come back."""
        return self._cancelled

    def request_cancel(self) -> None:
        """For the worker: let `cancelled` be true from now on."""
        self._cancelled = True

    def progress(self, value: Any) -> Awaitable[None]:
        """Keep progress, any JSON value up to 1 MiB, on the job, for everyone to see.

        Raises LeaseLost when the job is no longer held here, Refused for what JSON cannot say.
        """
        raw = JSON.encode(value)
        check_bytes("progress", raw, LIMITS.progress)
        return self._here(self._report(raw))

    async def _report(self, raw: bytes) -> None:
        if await self._storage.report(self.queue, self.id, self.fence, raw) == "lost":
            raise LeaseLost(f"{self.queue}/{self.id}: its lease ended, the progress was not kept")

    def then(self, bound: Bound) -> None:
        """Enqueue `task.bind(...)` in the same atomic step as the completion of this run.

        Another queue is possible where the storage is `cross_queue`. Raises Refused at once.
        """
        if bound.queue != self.queue and not self._storage.capabilities.cross_queue:
            raise Refused(
                f"this storage cannot enqueue to {bound.queue!r} in one step with the end of a job of "
                f"{self.queue!r}; enqueue it in the handler instead",
                field="then",
            )
        then = bound.as_then()
        check_then([then])
        self.follow_ups = (*self.follow_ups, then)

    def _here(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Return the work on the worker's loop, and on another thread wait for it there."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
            return _Finished()
        if running is self._loop:
            return work
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class _Finished:
    """What is awaited when there is nothing left to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


#: Set by the worker around a run, before the payload is decoded.
CURRENT: Final[ContextVar[CurrentJob]] = ContextVar("dibs_current_job")


def current_job() -> CurrentJob:
    """Return the job whose handler is running here. Raises NotRunning outside a handler."""
    try:
        return CURRENT.get()
    except LookupError:
        raise NotRunning("current_job() is for use inside a handler that a worker runs") from None
