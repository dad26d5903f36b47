"""An app for the length of a test: where its jobs live, what time it is there, and when they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from dibs.client.app import Dibs
from dibs.client.calls.current_job import CURRENT
from dibs.client.options.durations import Seconds, duration_ms
from dibs.client.sync import background_loop as bridge
from dibs.client.work_report import WorkReport
from dibs.errors import ConfigurationError, NotRunning
from dibs.model.requests import EnqueueRequest
from dibs.storage.registry import open_storage
from dibs.testing.clock import ManualClock
from dibs.testing.stage import Stage

T = TypeVar("T")

#: How many runs a queue may take to be empty, unless a test says otherwise.
MOST: Final = 10_000


def using(
    app: Dibs, url: str = "memory:", *, inline: bool = False, start: datetime | None = None, **options: Any
) -> Rehearsal:
    """Let an app live elsewhere for a test: enter it with `async with`, or with `with` where all blocks.

    Time stands still there unless `advance` moves it, and nothing runs unless it is told to; with `inline`
    an enqueue returns when what is due has run. Afterwards the app lives where it did.
    """
    return Rehearsal(app, ManualClock(open_storage(url, clock="manual", **options), start), inline=inline)


class Rehearsal:
    """Runs the jobs of an app when a test says so, at the time that a test says it is."""

    def __init__(self, app: Dibs, clock: ManualClock, *, inline: bool = False) -> None:
        self.app = app
        self._clock = clock
        self._inline = inline
        self._stack = ExitStack()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def now(self) -> datetime:
        """What time it is for the jobs, in UTC."""
        return self._clock.moment

    @property
    def sync(self) -> BlockingRehearsal:
        """The same, blocking."""
        return BlockingRehearsal(self)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.app.override_storage(self._clock.storage))
        if self._inline:
            self.app.middleware(enqueue=self._and_run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Open on a loop that has ended, or on the one that runs here, it is let go as it is.
        with suppress(ConfigurationError):
            if self.app._storage_handle.loop is not None:  # noqa: SLF001 - whether there is somebody to close it
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

    async def run_due(self, most: int = MOST) -> WorkReport:
        """Run what is due, and what becomes due by that; no time passes. Returns what became of the runs."""
        report = WorkReport()
        await self._run(report, most)
        return report

    async def run_until_empty(self, most: int = MOST) -> WorkReport:
        """Run until no job waits, not even for its time: delays and retries pass at once.

        The next tick of a periodic task is not waited for. What is paused, blocked by a claim of someone
        else's, or has no handler here stays. Raises WaitTimeout when `most` runs were not enough.
        """
        report = WorkReport()
        while (due := await self._run(report, most, ticks=False)) is not None:
            await self._clock.move_to(due)
        return report

    async def advance(self, seconds: Seconds) -> None:
        """Let time pass: what was scheduled falls due, leases and outcomes expire, as after so long.

        Nothing runs by that, except inline: there each job runs on the way, at its time.
        """
        until = self._clock.now + duration_ms("seconds", seconds)
        await self._opened()
        await Stage(self.app, self._clock, WorkReport(), MOST).plant()
        while self._inline and (due := await self._run(WorkReport(), MOST)) is not None and due <= until:
            await self._clock.move_to(due)
        await self._clock.move_to(until)

    async def _run(self, report: WorkReport, most: int, *, ticks: bool = True) -> int | None:
        if CURRENT.get(None) is not None:
            raise ConfigurationError("a handler is running already: it cannot wait for all to have run")
        await self._opened()
        async with self._lock():
            began = time.monotonic()
            due = await Stage(self.app, self._clock, report, most).run(ticks=ticks)
            report.seconds += time.monotonic() - began
            return due

    @asynccontextmanager
    async def _and_run(self, queue: str, requests: Sequence[EnqueueRequest]) -> AsyncIterator[Sequence[EnqueueRequest]]:
        yield requests
        # What a handler enqueues runs beside it or after it, as in production: it does not wait for that.
        if CURRENT.get(None) is None:
            await self._run(WorkReport(), MOST)

    async def _opened(self) -> None:
        """Open the app where it is not, or not any more: what a test asks after its service has closed it."""
        try:
            _ = self.app.storage
        except NotRunning:
            await self.app.open()

    def _lock(self) -> asyncio.Lock:
        here = asyncio.get_running_loop()
        if self._running is None or self._running[0] is not here:
            self._running = here, asyncio.Lock()
        return self._running[1]


class BlockingRehearsal:
    """Rehearsal, blocking."""

    def __init__(self, source: Rehearsal) -> None:
        self._source = source

    @property
    def now(self) -> datetime:
        return self._source.now

    def run_due(self, most: int = MOST) -> WorkReport:
        return self._do("run_due", self._source.run_due(most))

    def run_until_empty(self, most: int = MOST) -> WorkReport:
        return self._do("run_until_empty", self._source.run_until_empty(most))

    def advance(self, seconds: Seconds) -> None:
        self._do("advance", self._source.advance(seconds))

    def _do(self, name: str, call: Coroutine[Any, Any, T]) -> T:
        handle = self._source.app._storage_handle  # noqa: SLF001 - as the app's own twin does
        return bridge.run(handle, f"await rehearsal.{name}(...)", call)
