"""Rehearsals: an app with a test storage and a manual clock. The test decides when jobs run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from attrs import define, field, frozen

from dibs.app import Dibs
from dibs.client.calls.current_job import CURRENT_JOB
from dibs.client.connection.caller_thread import HANDLER_THREAD, HandlerThread
from dibs.client.options.arguments import Seconds, duration_ms
from dibs.client.sync import background_loop
from dibs.client.work_report import WorkReport
from dibs.errors import ConfigurationError, NotRunning
from dibs.model.requests import EnqueueRequest
from dibs.storage.registry import open_storage
from dibs.testing.clock import ManualClock
from dibs.testing.inline_worker import InlineWorker

T = TypeVar("T")

#: Default of `max_runs`. The limit ends a test whose jobs enqueue each other endlessly.
DEFAULT_MAX_RUNS: Final = 10_000


def using(
    app: Dibs,
    url: str = "memory:",
    *,
    inline: bool = False,
    start: datetime | None = None,
    threads: bool = True,
    **options: Any,
) -> Rehearsal:
    """Return a context manager that makes `app` use a test storage with a manual clock.

    Enter it by `async with`, or by `with` in blocking code. At its end the app returns to its storage.

    - `url`: the URL of the test storage. Default "memory:".
    - `inline`: with True each enqueue runs all due jobs before it returns. Default False.
    - `start`: the first time of the manual clock, with a time zone. Default: the real time.
    - `threads`: with False `def` handlers run one after the other on the thread of a blocking test. There
      they use its database connection and see its uncommitted rows, as in Django's TestCase. Default True.
    - `options`: options of the test storage.

    Raises ConfigurationError if the storage does not support a manual clock.
    """
    return Rehearsal(
        app, ManualClock(open_storage(url, clock="manual", **options), start), inline=inline, threads=threads
    )


@define(eq=False)
class Rehearsal:
    """An app with a test storage. The test moves the clock and starts the runs.

    Only `advance` and `run_until_empty` move the clock.
    """

    app: Dibs
    """The app under test."""
    _clock: ManualClock
    _inline: bool = field(default=False, kw_only=True)
    _threads: bool = field(default=True, kw_only=True)
    _stack: ExitStack = field(factory=ExitStack, init=False)
    #: The lock of `_run_due_jobs`, and the event loop that the lock belongs to.
    _run_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = field(default=None, init=False)

    @property
    def now(self) -> datetime:
        """The time of the manual clock, in UTC."""
        return self._clock.now_utc

    @property
    def sync(self) -> BlockingRehearsal:
        """This rehearsal with methods for blocking code, which need no `await`."""
        return BlockingRehearsal(self)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.app.override_storage(self._clock.storage))
        if not self._threads:
            self._stack.enter_context(_running_handlers_here())
        if self._inline:
            self.app.middleware(enqueue=self._run_after_enqueue)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On a thread with a running event loop the app cannot be closed from here.
        with suppress(ConfigurationError):
            if self.app._storage_handle.is_open:  # noqa: SLF001 - a rehearsal belongs to its app
                self.app.sync.close()
        self._stack.close()

    async def __aenter__(self) -> Self:
        self.__enter__()
        await self.app.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.app.close()
        self._stack.close()

    # -- runs and time -------------------------------------------------------------------------------

    async def run_due(self, max_runs: int = DEFAULT_MAX_RUNS) -> WorkReport:
        """Run all due jobs, and the due jobs that these enqueue, and return a report. The clock stands still.

            report = await jobs.run_due()
            assert report.total("completed") == 1

        Raises WaitTimeout after `max_runs` runs.
        """
        report = WorkReport()
        await self._run_due_jobs(report, max_runs)
        return report

    async def run_until_empty(self, max_runs: int = DEFAULT_MAX_RUNS) -> WorkReport:
        """Run jobs until no job waits, and return a report. The clock jumps to each delay and retry.

            await jobs.run_until_empty()

        Jobs of paused queues, jobs without a handler, successors of jobs that are claimed elsewhere, and the
        next ticks of periodic tasks stay. Raises WaitTimeout after `max_runs` runs.
        """
        report = WorkReport()
        while (due := await self._run_due_jobs(report, max_runs, ticks=False)) is not None:
            await self._clock.move_to(due)
        return report

    async def advance(self, seconds: Seconds) -> None:
        """Move the clock forward: scheduled jobs become due, leases and outcomes expire.

            await jobs.advance("1h")
            await jobs.run_due()

        No job runs. With `inline=True` each job runs when the clock reaches its time.
        """
        until = self._clock.now_ms + duration_ms("seconds", seconds)
        await self._ensure_open()
        await InlineWorker(self.app, self._clock, WorkReport(), DEFAULT_MAX_RUNS).apply_declared_schedules()
        while (
            self._inline
            and (due := await self._run_due_jobs(WorkReport(), DEFAULT_MAX_RUNS)) is not None
            and due <= until
        ):
            await self._clock.move_to(due)
        await self._clock.move_to(until)

    async def _run_due_jobs(self, report: WorkReport, max_runs: int, *, ticks: bool = True) -> int | None:
        if CURRENT_JOB.get(None) is not None:
            raise ConfigurationError(
                "a handler cannot run the rehearsal, as it would wait for its own run; run it from the test"
            )
        await self._ensure_open()
        # Entered, so that blocking calls of the handlers run on this event loop.
        handle = self.app._storage_handle  # noqa: SLF001 - a rehearsal belongs to its app
        async with self._run_lock_of_loop(), handle.opened_temporarily():
            began = time.monotonic()
            due = await InlineWorker(self.app, self._clock, report, max_runs).run_due(ticks=ticks)
            report.seconds += time.monotonic() - began
            return due

    @asynccontextmanager
    async def _run_after_enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest]
    ) -> AsyncIterator[Sequence[EnqueueRequest]]:
        yield requests
        # A job that a handler enqueues runs during or after the handler, as in production.
        if CURRENT_JOB.get(None) is None:
            await self._run_due_jobs(WorkReport(), DEFAULT_MAX_RUNS)

    async def _ensure_open(self) -> None:
        """Open the app if the test has not opened it, or if the application under test has closed it."""
        try:
            _ = self.app.storage
        except NotRunning:
            await self.app.open()

    def _run_lock_of_loop(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._run_lock is None or self._run_lock[0] is not loop:
            self._run_lock = loop, asyncio.Lock()
        return self._run_lock[1]


@contextmanager
def _running_handlers_here() -> Iterator[None]:
    """Run the handlers of blocking calls on this thread for a block.

    The block sets the variable back without a token, because it may end in another context than it began in.
    """
    HANDLER_THREAD.set(HandlerThread())
    try:
        yield
    finally:
        HANDLER_THREAD.set(None)


@frozen(eq=False)
class BlockingRehearsal:
    """A rehearsal for blocking code. Its methods are those of Rehearsal, called without `await`."""

    _source: Rehearsal

    @property
    def now(self) -> datetime:
        return self._source.now

    def run_due(self, max_runs: int = DEFAULT_MAX_RUNS) -> WorkReport:
        return self._run_blocking("run_due", self._source.run_due(max_runs))

    def run_until_empty(self, max_runs: int = DEFAULT_MAX_RUNS) -> WorkReport:
        return self._run_blocking("run_until_empty", self._source.run_until_empty(max_runs))

    def advance(self, seconds: Seconds) -> None:
        self._run_blocking("advance", self._source.advance(seconds))

    def _run_blocking(self, name: str, call: Coroutine[Any, Any, T]) -> T:
        handle = self._source.app._storage_handle  # noqa: SLF001 - a rehearsal belongs to its app
        return background_loop.run(handle, f"await rehearsal.{name}(...)", call)
