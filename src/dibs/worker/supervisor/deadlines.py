"""The supervisor's check of run deadlines, for worker processes that hang and so cannot check their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define

from dibs.worker import messages
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
from dibs.worker.supervisor.worker_handle import WorkerHandle

#: Seconds between two checks.
CHECK_EVERY: Final = 0.25
#: Seconds a worker process has after a deadline to send RunTimedOut or RunOverran. A process that sends
#: neither cannot do so: a handler holds its interpreter, or blocks its event loop.
MESSAGE_MARGIN: Final = 1.0


@define(eq=False)
class DeadlineWatch:
    """A check for worker processes that do not enforce the deadlines of their runs.

    `on_overdue` is called with such a worker. It is also called with a retiring worker (it must end because
    a run overran) that has not exited at its `retire_by`.
    """

    _held_runs: HeldRuns[WorkerHandle]
    _workers: Iterable[WorkerHandle]
    _on_overdue: Callable[[WorkerHandle], None]

    async def run(self) -> None:
        """Check every CHECK_EVERY seconds, until cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_EVERY)
            now = time.monotonic()
            # A late check shows that the supervisor was stopped or had no CPU. Messages of the workers may
            # wait in the pipes then, so the event loop first reads them for MESSAGE_MARGIN seconds.
            if now - before < CHECK_EVERY + MESSAGE_MARGIN / 2:
                self._check_workers(now)
            else:
                await asyncio.sleep(MESSAGE_MARGIN)
                now = time.monotonic()
            before = now

    def _check_workers(self, now: float) -> None:
        for worker in list(self._workers):
            if worker.exit_expected or not worker.killable:
                continue
            too_long = worker.retire_by is not None and worker.retire_by <= now
            if too_long or (not worker.ended_for_overrun and self._misses_deadline(worker, now)):
                self._on_overdue(worker)

    def _misses_deadline(self, worker: WorkerHandle, now: float) -> bool:
        """Return whether a run of the worker is past its deadline, and mark each such run as overrun."""
        found = False
        for held_run in self._held_runs.runs_of(worker):
            if _is_past_deadline(held_run, worker.started[held_run.run.index], now):
                held_run.overran = found = True
        return found

    def on_timed_out(self, worker: WorkerHandle, message: messages.RunTimedOut) -> None:
        """Extend the deadline of a run by the time that its process gives it to stop."""
        if held_run := self._held_runs.find_run(worker, message.index, message.fence):
            held_run.stop_deadline = time.monotonic() + message.seconds

    def on_overran(self, worker: WorkerHandle, message: messages.RunOverran) -> None:
        """Mark a run as overrun: only the exit of its process can stop it."""
        if held_run := self._held_runs.find_run(worker, message.index, message.fence):
            held_run.overran = True


def _is_past_deadline(held_run: HeldRun, started: float, now: float) -> bool:
    deadline = held_run.deadline(started)
    return deadline is not None and deadline + MESSAGE_MARGIN <= now
