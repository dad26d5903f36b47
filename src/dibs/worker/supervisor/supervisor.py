"""The supervisor: it starts, watches and replaces workers, and keeps the leases they claim under.

The supervisor itself runs no handler. After a worker process has died, `Supervisor.on_exit` starts the
recovery: crash_recovery.py settles the runs of the process, and workers.py computes the pause before the
supervisor starts a new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from dibs.app import Dibs
from dibs.client.calls.handler import PROCESS_UNITS
from dibs.client.work_report import WorkReport
from dibs.errors import ConfigurationError
from dibs.model.results import RenewResult
from dibs.model.worker_record import WorkerState
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.execution import exception_info
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.supervisor.crash_recovery import Crash, CrashRecovery
from dibs.worker.supervisor.health import Health
from dibs.worker.supervisor.held_runs import DeadlineWatch, HeldRuns
from dibs.worker.supervisor.leases import LeaseKeeper, LeaseRotation
from dibs.worker.supervisor.workers import WorkerHandle, Workers
from dibs.worker.work_plan import WorkPlan

logger = logging.getLogger("dibs.worker")

#: Seconds that `stop` waits for workers to release interrupted runs and to leave their lifespan, and again
#: for crash recoveries to end. A worker with an overrun has at least as long to leave its lifespan.
STOP_TIMEOUT: Final = 2.0


class ChangeCounter:
    """A counter of changes. Other tasks wait for the next change, or compare `count` to detect a past one."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        self.count += 1
        self._event.set()

    async def wait(self) -> None:
        """Wait for the next change after this call."""
        self._event.clear()
        await self._event.wait()


class Supervisor:
    """The workers of one call of `run`, and the lease over its queues that they claim and settle under."""

    def __init__(
        self, app: Dibs, storage: Storage, plan: WorkPlan, report: WorkReport, fork_server: ForkServer | None
    ) -> None:
        self._plan = plan
        self._handlers = app.handlers
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._held_runs: HeldRuns[WorkerHandle] = HeldRuns()
        self._workers = Workers(app, plan, fork_server)
        self._keeper = LeaseKeeper(
            storage=storage,
            queues=plan.queues,
            holder=plan.name,
            lease_seconds=plan.lease,
            renew_every=plan.heartbeat,
            on_lost=self._on_lease_lost,
            on_cancel_requested=self._on_cancel_requested,
        )
        self._leases = LeaseRotation(self._keeper, self._workers, self._held_runs)
        self._deadlines = DeadlineWatch(self._held_runs, self._workers, on_overdue=self._kill_overdue_worker)
        self._recovery = CrashRecovery(storage, app.handlers, report)
        self._tasks: set[asyncio.Task[None]] = set()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._stopping = False
        #: True once a worker was ready. Until then `run` fails if workers cannot start; afterwards the
        #: supervisor keeps trying to start them.
        self._was_ready = False
        #: Gets an exception if no worker can start. The call of `run` raises this exception.
        self.failure: asyncio.Future[None] = self._loop.create_future()
        #: Notified when a run begins or ends, or a worker starts or exits.
        self.changes = ChangeCounter()

    def count_held_runs(self) -> int:
        """Return the number of runs that the workers have claimed and not yet settled.

        Messages of a worker process may wait for READ_PAUSE, so they are read first.
        """
        for worker in tuple(self._workers):
            worker.read_waiting()
        return len(self._held_runs)

    @property
    def health(self) -> Health:
        """The state that /healthz and /readyz report."""
        can_claim = any(worker.ready and not worker.retiring for worker in self._workers)
        return Health(
            ready=can_claim and self._leases.current is not None and not self._stopping,
            stopping=self._stopping,
            processes=self._report.processes,
            running=self.count_held_runs(),
        )

    @property
    def worker_state(self) -> WorkerState:
        """The state that the record of this worker shows."""
        health, capacity = self.health, PROCESS_UNITS * max(1, self._plan.processes)
        busy = sum(
            self._handlers[queue].size * number for queue, number in self._held_runs.count_by_queue().items()
        )
        return WorkerState(
            processes=health.processes if self._plan.processes else (),
            capacity=capacity,
            # Prefetched runs are held, too, and do not take units yet.
            busy=min(busy, capacity),
            running=health.running,
            ready=health.ready,
            stopping=health.stopping,
            leases=self._keeper.leases,
        )

    # -- start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Grant a lease, as soon as the storage is available, and start all workers. Raise StorageError."""
        await self._leases.start()
        self._start_task(self._deadlines.run())
        self._start_workers()

    async def drain(self) -> None:
        """Make the workers claim no more, and wait until they have ended their runs and have exited."""
        self._stopping = True
        for worker in self._workers:
            if worker.ready:
                worker.send(messages.DrainWorker())
            else:
                worker.shut_down()
        while any(True for _ in self._workers):
            await self.changes.wait()

    async def stop(self) -> None:
        """Interrupt and release the remaining runs, end all workers and drop the leases."""
        self._stopping = True
        for worker in self._workers:
            worker.send(messages.StopWorker())
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                while any(worker.ready for worker in self._workers):
                    await self.changes.wait()
        if any(worker.drained for worker in self._workers):
            logger.warning(
                "@app.lifespan has not ended after its yield in time, or a function of atexit has not: the "
                "worker is stopped there"
            )
        await self._workers.shut_down()
        if self._recoveries:
            await asyncio.wait(self._recoveries, timeout=STOP_TIMEOUT)
        for task in self._tasks:
            task.cancel()
        await self._leases.stop()

    def _start_workers(self) -> None:
        if not self._stopping:
            self._workers.start_missing(self)
            self._update_processes()

    def _update_processes(self) -> None:
        self._report.processes = self._workers.pids
        self.changes.notify()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- messages of workers -------------------------------------------------------------------------

    def on_message(self, worker: WorkerHandle, message: messages.FromWorker) -> None:
        """Handle a message of a worker. The messages of one worker arrive in the order it sent them."""
        match message:
            case messages.RunsClaimed() | messages.RunsSettled():
                self._record_runs(worker, message)
            case messages.LeaseAdopted() | messages.ClaimReplyLost() | messages.LeaseRejected():
                self._on_lease_message(worker, message)
            case messages.ProcessReady():
                self._on_ready(worker)
            case messages.RunTimedOut():
                self._deadlines.on_timed_out(worker, message)
            case messages.RunOverran():
                self._deadlines.on_overran(worker, message)
                self._on_overran(worker, message)
            case messages.WorkerSpent(reason, planned):
                level = logging.INFO if planned else logging.WARNING
                logger.log(level, "worker process %d %s: it is replaced", worker.pid, reason)
                self._retire_worker(worker)
            case messages.WorkerDrained():
                self._on_drained(worker)
            case messages.StartFailed(reason, passing):
                worker.start_error, worker.start_error_passes = reason, passing
        self.changes.notify()

    def _on_lease_message(
        self,
        worker: WorkerHandle,
        message: messages.LeaseAdopted | messages.ClaimReplyLost | messages.LeaseRejected,
    ) -> None:
        match message:
            case messages.LeaseAdopted(lease):
                worker.lease = lease
                self._leases.drop_unused()
            case messages.ClaimReplyLost(lease):
                self._replace_lease(lease)
            case messages.LeaseRejected(lease):
                self._keeper.mark_lost(lease, "the storage refused a claim under it")

    def _record_runs(
        self, worker: WorkerHandle, message: messages.RunsClaimed | messages.RunsSettled
    ) -> None:
        if isinstance(message, messages.RunsClaimed):
            self._held_runs.add(worker, message)
            self._report.queue(message.queue).claimed += len(message.runs)
        else:
            self._report.add(message.queue, self._held_runs.remove(worker, message))
            self._leases.drop_unused()

    def _on_ready(self, worker: WorkerHandle) -> None:
        worker.ready = self._was_ready = True
        self._update_processes()
        if self._leases.current is not None:
            worker.send(messages.UseLease(self._leases.current))

    def _on_drained(self, worker: WorkerHandle) -> None:
        worker.drained = True
        if any(held_run.overran for held_run in self._held_runs.runs_of(worker)):
            # The handlers that overran end with their process, which leaves the lifespan before it exits.
            worker.ended_for_overrun = True
            worker.retire_by = max(worker.retire_by or 0.0, time.monotonic() + STOP_TIMEOUT)
            worker.send(messages.StopWorker())
        elif worker.retiring and worker.retire_by is None:
            worker.retire_by = time.monotonic() + self._plan.grace  # for its lifespan

    # -- replacements --------------------------------------------------------------------------------

    def _retire_worker(self, worker: WorkerHandle) -> None:
        """Let a worker claim no more, finish its runs and exit, and start its replacement."""
        if not worker.retiring and not self._stopping:
            worker.retiring = True
            worker.send(messages.DrainWorker())
            self._start_workers()

    def _on_overran(self, worker: WorkerHandle, message: messages.RunOverran) -> None:
        """Start the replacement of a worker whose handler does not stop, and let it finish its other runs.

        The worker is killed after the grace even if other runs still last: they may have no timeout, and the
        run that overran must end.
        """
        self._report.overruns += 1
        effect = "its process is replaced" if worker.killable else "the run is settled as timed out"
        logger.error("%s/%s: its handler still runs after its timeout; %s", message.queue, message.id, effect)
        if worker.killable and worker.retire_by is None and not worker.ended_for_overrun:
            worker.retire_by = time.monotonic() + self._plan.grace
            self._retire_worker(worker)

    def _kill_overdue_worker(self, worker: WorkerHandle) -> None:
        """Kill a process that does not enforce the deadlines of its runs. `on_exit` settles these runs."""
        announced, worker.retire_by = worker.retire_by is not None, None
        worker.ended_for_overrun = True
        for held_run in self._held_runs.runs_of(worker):
            if held_run.overran and not announced:
                self._report.overruns += 1
                logger.error(
                    "%s/%s: run over its timeout, and process %d does not react: it is killed and replaced",
                    held_run.queue, held_run.run.id, worker.pid,
                )  # fmt: skip
        worker.kill()

    # -- exits of workers ----------------------------------------------------------------------------

    def on_exit(self, worker: WorkerHandle, reason: str) -> None:
        """Settle the runs of a worker that has exited, and replace it unless its exit was intended."""
        lifetime = self._workers.remove(worker)
        if worker.exit_expected or (worker.drained and not worker.ended_for_overrun):
            # The runs that it still holds are released when the lease is dropped.
            for held_run in self._held_runs.runs_of(worker):
                self._report.queue(held_run.queue).released += 1
            self._held_runs.remove_worker(worker)
            if worker.retiring and not worker.exit_expected:
                self._start_workers()
        elif worker.start_error is not None or not worker.ready:
            self._on_failed_start(worker, reason)
        elif worker.ended_for_overrun:
            self._start_recovery(worker, None)
            self._start_workers()
        else:
            self._on_crash(worker, reason)
            self._replace_worker_later(lifetime)
        self._update_processes()

    def _on_failed_start(self, worker: WorkerHandle, reason: str) -> None:
        if self._stopping:
            return
        error = worker.start_error or f"{reason} while it was starting"
        give_up = worker.start_error is not None or self._workers.starts_keep_failing
        if self._was_ready or worker.start_error_passes or not give_up:
            logger.error("a worker process could not be started, trying again: %s", error)
            self._replace_worker_later(0)
        elif not self.failure.done():
            self.failure.set_exception(
                error if isinstance(error, BaseException) else ConfigurationError(error)
            )

    def _on_crash(self, worker: WorkerHandle, reason: str) -> None:
        self._report.crashes += 1
        logger.error("%s; the runs it had started are stalled", reason)
        error = exception_info.make_error("ProcessDied", f"{reason} while it ran this")
        self._start_recovery(worker, Crash(worker.started, error))

    def _replace_worker_later(self, lifetime: float) -> None:
        self._loop.call_later(self._workers.next_restart_pause(lifetime), self._start_workers)

    def _start_recovery(self, worker: WorkerHandle, crash: Crash | None) -> None:
        task = self._start_task(self._recover_runs(worker, crash))
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)
        # The worker may have claimed more jobs and died before it sent RunsClaimed. These jobs return to
        # their queue when this lease is dropped.
        self._replace_lease(self._leases.current)

    async def _recover_runs(self, worker: WorkerHandle, crash: Crash | None) -> None:
        await self._recovery.settle_runs(self._held_runs.runs_of(worker), crash)
        self._held_runs.remove_worker(worker)
        self._leases.drop_unused()
        self.changes.notify()

    # -- leases --------------------------------------------------------------------------------------

    def _on_cancel_requested(self, queue: str, result: RenewResult) -> None:
        """Ask the workers to cancel the runs that the reply to a renewal names."""
        runs_by_worker = self._held_runs.take_runs_to_cancel(queue, result.cancel_requested, result.now)
        for worker, runs in runs_by_worker.items():
            worker.send(messages.CancelRuns(tuple(runs)))

    def _replace_lease(self, lease: str | None) -> None:
        if not self._stopping:
            self._leases.replace_if_current(lease)

    def _on_lease_lost(self, _lease: str) -> None:
        """Kill all workers at once, because other workers may hold the same jobs, and start new ones."""
        self._leases.forget_all()
        for worker in self._workers:
            for held_run in self._held_runs.runs_of(worker):
                self._report.queue(held_run.queue).lost += 1
            self._held_runs.remove_worker(worker)
            worker.shut_down()
        if not self._stopping:
            self._start_task(self._restart_workers())

    async def _restart_workers(self) -> None:
        await self._workers.shut_down()
        await self._leases.restart()
        self._start_workers()
