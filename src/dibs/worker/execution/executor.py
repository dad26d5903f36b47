"""The executor of a worker process. It starts runs, interrupts them, and checks their timeouts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, Protocol

from dibs.client.calls.handler import Handler
from dibs.model.run_outcome import HandedOff, Raised, Returned, StopReason, Verdict
from dibs.worker.execution.exception_info import verdict_on_error
from dibs.worker.execution.forks import guard_loop
from dibs.worker.execution.invocation import (
    Invocation,
    call_async_handler,
    call_sync_handler,
    interrupted_verdict,
    timeout_verdict,
)
from dibs.worker.execution.loop_watchdog import LoopWatchdog
from dibs.worker.execution.threads import HandlerThreads

#: Seconds an `async def` handler may continue after its cancellation before it counts as overrun.
CANCEL_SECONDS: Final = 10.0


class ProcessExecutor(Protocol):
    """The executor of handlers with executor="process": it gives each run a child process."""

    async def run(self, invocation: Invocation, entered: Callable[[], None]) -> Verdict:
        """Run the job in a child process and return its verdict. Never raise.

        Call `entered` once, when the child process has entered the handler. Do not start the handler if
        `invocation.stop_reason` is set.
        """

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Ask a run to stop, for the reason `stop`."""


class Executor:
    """The executor of `async def` handlers on the event loop, `def` handlers on threads, others in processes.

    Each run gets a task of its own. A task that awaits one handler after the other would save no time (waking
    it costs a future, as much as the task), and it would pass the context variables of one job, and a
    cancellation that comes late, to the next job.

    `ended` is called once per run, with its verdict. `timed_out` is called with a run that exceeded its
    timeout, and the seconds it has to stop. `overran` is called with a run that did not stop.
    """

    def __init__(
        self,
        started: MutableSequence[float],
        process_executor: ProcessExecutor,
        *,
        ended: Callable[[Invocation, Verdict], None],
        timed_out: Callable[[Invocation, float], None],
        overran: Callable[[Invocation], None],
        killable: bool,
        start_handler: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        #: For each index of a run: when its handler was entered, by time.monotonic(), 0 if it was not.
        #: The supervisor shares this array and also checks the deadlines, so a start costs no message.
        self._started = started
        self._process_executor = process_executor
        self._ended, self._timed_out, self._overran = ended, timed_out, overran
        #: True if the supervisor kills this process when a handler does not stop. Until then the run stays
        #: unsettled, so that the job does not run twice at a time. If False, the run is settled as timed out
        #: and its capacity is free again, although the handler still runs.
        self._killable = killable
        #: Starts a `def` handler on the thread of a blocking test; None: each gets a thread of its own.
        self._start_handler = start_handler
        self._loop = asyncio.get_running_loop()
        guard_loop(self._loop)
        self._threads: HandlerThreads[tuple[Invocation, Verdict]] = HandlerThreads(
            self._loop, lambda result: self._finish_run(*result)
        )
        #: The context variables at the start of the worker, with those that the lifespan has set. Each run
        #: gets a copy, so it never sees the context variables of another run.
        self.context = copy_context()
        self._active: set[Invocation] = set()
        self._watchdog: LoopWatchdog | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def start(self, invocation: Invocation) -> None:
        """Start a run. The caller has set `invocation.current`."""
        self._active.add(invocation)
        handler = invocation.handler
        if handler.executor == "process":
            invocation.task = self._loop.create_task(self._run_in_process(invocation))
        elif handler.is_async:
            invocation.task = self._loop.create_task(
                self._run_async_handler(invocation), context=self.context.copy()
            )
        else:
            self._start_thread(invocation)
        if invocation.deadline is not None and invocation.deadline < self._timer_at:
            self._set_timer(invocation.deadline)

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Ask a run to stop. A second call changes nothing: the first reason stays.

        A `def` handler cannot be interrupted; it can only check `job.cancelled`.
        """
        if invocation.finished or invocation.stop_reason is not None:
            return
        invocation.stop_reason = stop
        if stop == "cancel":
            invocation.current.request_cancel()
        if invocation.handler.executor == "process":
            self._process_executor.interrupt(invocation, stop)
        elif invocation.task is not None and invocation.entered:
            invocation.task.cancel()

    def abandon(self, invocation: Invocation) -> None:
        """Stop a run whose result no longer counts, before another worker may get its job.

        A coroutine that swallowed its cancellation is closed: it gets GeneratorExit where it waits.
        """
        task = invocation.task
        if invocation.stop_reason is None or task is None or invocation.handler.executor == "process":
            self.interrupt(invocation, "release")
            return
        # Retrieve the exception: otherwise asyncio logs the RuntimeError that a closed coroutine raises.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        with suppress(RuntimeError):  # the handler ignores GeneratorExit, too
            task.get_coro().close()
        task.cancel()

    def watch_loop(self, is_busy: Callable[[], bool]) -> None:
        """Warn of handlers and hooks that block the event loop, while `is_busy` returns True."""
        self._watchdog = LoopWatchdog(self._loop, is_busy)

    def close(self) -> None:
        """End the threads and the timer. The caller closes the process executor."""
        self._threads.close()
        if self._watchdog is not None:
            self._watchdog.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the three ways to run a handler -------------------------------------------------------------

    async def _run_async_handler(self, invocation: Invocation) -> None:
        if invocation.stop_reason is None:
            # The same as `_mark_entered`, without the call, because this code runs for each job.
            invocation.entered = True
            self._started[invocation.index] = time.monotonic()
            verdict = await call_async_handler(invocation)
        else:
            verdict = interrupted_verdict()
        self._finish_run(invocation, verdict)

    def _start_thread(self, invocation: Invocation) -> None:
        if self._start_handler is not None:
            self._start_handler(partial(self._run_for_test, invocation))
            return
        try:
            self._threads.run(lambda: (invocation, self._run_sync_handler(invocation)))
        except RuntimeError as error:  # the operating system allows no more threads
            self._finish_run(invocation, verdict_on_error(error))

    def _run_for_test(self, invocation: Invocation) -> None:
        verdict = self._run_sync_handler(invocation)
        self._loop.call_soon_threadsafe(self._finish_run, invocation, verdict)

    def _run_sync_handler(self, invocation: Invocation) -> Verdict:
        if not self._mark_entered(invocation):
            return interrupted_verdict()
        return call_sync_handler(invocation, self.context.copy())

    async def _run_in_process(self, invocation: Invocation) -> None:
        if invocation.stop_reason is None:
            verdict = await self._run_in_child(invocation)
        else:
            verdict = interrupted_verdict()
        self._finish_run(invocation, verdict)

    async def _run_in_child(self, invocation: Invocation) -> Verdict:
        try:
            return await self._process_executor.run(invocation, lambda: self._start_clock(invocation))
        except Exception as error:  # noqa: BLE001 - the operating system allows no more processes, or a bug
            return verdict_on_error(error)

    def _start_clock(self, invocation: Invocation) -> None:
        """Start the time of a handler that a child process has entered: its process may start slowly."""
        invocation.entered = True
        self._started[invocation.index] = time.monotonic()
        invocation.start_timeout()
        self._watch_deadline(invocation)

    def _mark_entered(self, invocation: Invocation) -> bool:
        if invocation.stop_reason is not None:
            return False
        invocation.entered = True
        self._started[invocation.index] = time.monotonic()
        return True

    def _finish_run(self, invocation: Invocation, verdict: Verdict) -> None:
        self._active.discard(invocation)
        if invocation.finished:
            return
        invocation.finished = True
        # Free these objects now, so that the next run reuses their memory. Hundreds of runs wait for their
        # settlement, and with these objects the garbage collector would run three times as often.
        invocation.task = None
        del invocation.current
        if invocation.stop_reason == "timeout" and not _replaces_timeout(verdict):
            verdict = timeout_verdict(invocation, verdict)
        self._report_end(invocation, verdict)

    def _report_end(self, invocation: Invocation, verdict: Verdict) -> None:
        if (entered_at := self._started[invocation.index]) and invocation.handler.executor != "process":
            invocation.seconds = time.monotonic() - entered_at
        self._ended(invocation, verdict)

    # -- deadlines: one timer for all runs, as most runs end long before their deadline ----------------

    def _watch_deadline(self, invocation: Invocation) -> None:
        if invocation.deadline is not None and invocation.deadline < self._timer_at:
            self._set_timer(invocation.deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = time.monotonic()
        for invocation in list(self._active):
            if invocation.deadline is not None and invocation.deadline <= now:
                self._time_out_run(invocation, now)
        deadlines = [run.deadline for run in self._active if run.deadline is not None]
        if deadlines:
            self._set_timer(max(min(deadlines), now + 0.001))

    def _time_out_run(self, invocation: Invocation, now: float) -> None:
        if invocation.stop_reason is None:
            self.interrupt(invocation, "timeout")
            if invocation.task is not None:
                invocation.deadline = now + CANCEL_SECONDS
                self._timed_out(invocation, CANCEL_SECONDS)
                return
        self._give_up_run(invocation)

    def _give_up_run(self, invocation: Invocation) -> None:
        """Report a run that did not stop. Settle it if the supervisor will not kill this process."""
        invocation.overran = True
        invocation.deadline = None
        if not self._killable:
            self._active.discard(invocation)
            invocation.finished = True
            self._report_end(invocation, timeout_verdict(invocation))
        self._overran(invocation)


def runs_on_thread(handler: Handler) -> bool:
    """Return whether a handler runs on a thread: such a run cannot be interrupted."""
    return handler.executor != "process" and not handler.is_async


def _replaces_timeout(verdict: Verdict) -> bool:
    """Return whether the verdict of the handler counts although the run exceeded its timeout."""
    return isinstance(verdict, Returned | HandedOff) or (isinstance(verdict, Raised) and verdict.permanent)
