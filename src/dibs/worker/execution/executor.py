"""Starts runs where their handlers belong, stops them, and watches their deadlines."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, MutableSequence
from typing import Final, Protocol

from dibs.client.calls.handler import Handler
from dibs.model.run_outcome import Raised, Returned, StopReason, Verdict
from dibs.worker.execution import exception_info as blame
from dibs.worker.execution.invocation import Invocation, call, call_plain, too_late
from dibs.worker.execution.threads import Threads

#: Seconds an `async def` handler may go on after it was cancelled, before it counts as overrun.
STUBBORN: Final = 10.0


class ProcessExecutor(Protocol):
    """The executor of handlers with executor="process": it gives each run a child process."""

    async def run(self, run: Invocation, enter: Callable[[], bool]) -> Verdict:
        """Run the job in a child process and return its verdict. Never raise.

        Call `enter` right before the handler starts; do not start the handler if `enter` returns False.
        """

    def interrupt(self, run: Invocation, stop: StopReason) -> None:
        """Ask a run to stop, for the reason `stop`."""

    def close(self) -> None:
        """Kill all child processes."""


class Runner:
    """The runs of one process: `async def` on its loop, `def` on its threads, executor="process" alone.

    Each run gets a task of its own. A slot that awaits one handler after the other would save nothing
    (waking it costs a future, as much as the task), and it would hand the context variables of one job,
    and a cancellation that comes late, to the next.
    """

    #: Told what came of a run, once.
    ended: Callable[[Invocation, Verdict], None]
    #: Told of a run that is over its time, was told to stop, and has so many seconds for that.
    late: Callable[[Invocation, float], None]
    #: Told of a run that did not stop.
    overran: Callable[[Invocation], None]

    def __init__(self, started: MutableSequence[float], alone: ProcessExecutor, *, mortal: bool) -> None:
        #: One number a place: when its handler was entered, by time.monotonic(), 0 is not yet. Shared with
        #: the supervisor, which watches the deadlines, too, so that to say "started" costs no message.
        self.started = started
        #: The supervisor ends this process when a handler does not stop: until then such a run keeps its
        #: fence, so that the job is not run anew beside it. Elsewhere it loses its fence and its room.
        self._mortal = mortal
        self._alone = alone
        self._loop = asyncio.get_running_loop()
        self._threads: Threads[tuple[Invocation, Verdict]] = Threads(
            self._loop, lambda done: self._finish(*done)
        )
        self._active: set[Invocation] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def start(self, run: Invocation) -> None:
        """Begin a run that has its `current`."""
        self._active.add(run)
        handler = run.handler
        if handler.executor == "process":
            run.task = self._loop.create_task(self._run_alone(run))
        elif handler.is_async:
            run.task = self._loop.create_task(self._run(run))
        else:
            self._threads.run(lambda: (run, self._run_plain(run)))
        if run.deadline is not None and run.deadline < self._rings_at:
            self._watch(run.deadline)

    def interrupt(self, run: Invocation, stop: StopReason) -> None:
        """Ask a run to stop; the first reason counts. A `def` handler can only look at job.cancelled."""
        if run.over or run.stop is not None:
            return
        run.stop = stop
        if stop == "cancel":
            run.current.request_cancel()
        if run.handler.executor == "process":
            self._alone.interrupt(run, stop)
        elif run.task is not None and run.begun:
            run.task.cancel()

    def close(self) -> None:
        """Let the threads and the processes go."""
        self._threads.close()
        self._alone.close()
        if self._alarm is not None:
            self._alarm.cancel()

    # -- where handlers run --------------------------------------------------------------------------

    async def _run(self, run: Invocation) -> None:
        if self._enter(run):
            verdict = await call(run)
        else:
            verdict = _not_begun()
        self._finish(run, verdict)

    def _run_plain(self, run: Invocation) -> Verdict:
        return call_plain(run) if self._enter(run) else _not_begun()

    async def _run_alone(self, run: Invocation) -> None:
        if run.stop is None:
            verdict = await self._alone.run(run, lambda: self._enter(run))
        else:
            verdict = _not_begun()
        self._finish(run, verdict)

    def _enter(self, run: Invocation) -> bool:
        if run.stop is not None:
            return False
        run.begun = True
        self.started[run.place] = time.monotonic()
        return True

    def _finish(self, run: Invocation, verdict: Verdict) -> None:
        self._active.discard(run)
        if run.over:
            return
        run.over = True
        # Freed now, their memory serves the next run; until they are settled there are hundreds of them, and
        # Python looks for garbage among them three times as often.
        run.task = None
        del run.current
        if run.stop == "timeout" and not _counts(verdict):
            verdict = too_late(run, verdict)
        self.ended(run, verdict)

    # -- deadlines: one timer for all, as most runs end long before theirs ------------------------------

    def _watch(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = deadline
        self._alarm = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._alarm, self._rings_at = None, math.inf
        now = time.monotonic()
        for run in list(self._active):
            if run.deadline is not None and run.deadline <= now:
                self._overdue(run, now)
        deadlines = [run.deadline for run in self._active if run.deadline is not None]
        if deadlines:
            self._watch(max(min(deadlines), now + 0.001))

    def _overdue(self, run: Invocation, now: float) -> None:
        if run.stop is None:
            self.interrupt(run, "timeout")
            if run.task is not None:
                run.deadline = now + STUBBORN
                self.late(run, STUBBORN)
                return
        self._give_up(run)

    def _give_up(self, run: Invocation) -> None:
        """Say that a run goes on nevertheless; where nothing will end it, settle it all the same."""
        run.overran = True
        run.deadline = None
        if not self._mortal:
            self._active.discard(run)
            run.over = True
            self.ended(run, too_late(run))
        self.overran(run)


def on_thread(handler: Handler) -> bool:
    """Tell whether runs of a handler are on threads, where nothing can interrupt them."""
    return handler.executor != "process" and not handler.is_async


def _counts(verdict: Verdict) -> bool:
    """Tell whether the handler decided by itself, although its time was over."""
    return isinstance(verdict, Returned) or (isinstance(verdict, Raised) and verdict.permanent)


def _not_begun() -> Raised:
    return Raised(error=blame.plain("Interrupted", "it was to stop before it had begun"))
