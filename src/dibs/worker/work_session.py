"""The function `run`, which runs the jobs of an app until it is stopped, or its queues are empty or idle."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from dibs.app import Dibs, Until
from dibs.client.options.arguments import DEFAULT_GRACE, DEFAULT_LEASE, DEFAULT_POLL, Seconds
from dibs.client.work_report import StopRequest, StopRequests, WorkReport
from dibs.maintenance.declared_settings import apply_declared_settings
from dibs.model.error_text import summarize_exception
from dibs.model.worker_record import without_reserved
from dibs.storage.protocol import Storage
from dibs.storage.registry import parse_scheme
from dibs.worker.processes import signals
from dibs.worker.processes.child_process import refuse_during_import
from dibs.worker.processes.fork_server import ForkServer, open_fork_server
from dibs.worker.processes.logs import enable_dibs_loggers, repeated_warnings_once_a_minute
from dibs.worker.supervisor.availability import wait_until_available
from dibs.worker.supervisor.health import Health, serve_health
from dibs.worker.supervisor.maintenance import Maintenance, PeriodicTasks
from dibs.worker.supervisor.supervisor import Supervisor
from dibs.worker.supervisor.worker_record import WorkerRecordKeeper
from dibs.worker.work_plan import WorkPlan, check_arguments, make_plan, make_process_limits

logger = logging.getLogger("dibs.worker")

ProgressCallback = Callable[[WorkReport], Awaitable[None] | None]

#: Seconds without a run before the queues are counted: workers often hold no run between two batches.
IDLE_BEFORE_COUNT: Final = 0.02
#: Seconds between two calls of `progress`, and between two counts while until="empty" waits for jobs that are
#: scheduled for later.
PROGRESS_INTERVAL: Final = 0.2


async def run(
    app: Dibs,
    *,
    queues: Sequence[str] | None = None,
    processes: int | None = 0,
    until: Until = "stopped",
    grace: Seconds = DEFAULT_GRACE,
    lease: Seconds = DEFAULT_LEASE,
    heartbeat: Seconds | None = None,
    poll: Seconds = DEFAULT_POLL,
    name: str | None = None,
    max_runs: int | None = None,
    max_memory: float | None = None,
    reference: str = "",
    progress: ProgressCallback | None = None,
    health: socket.socket | None = None,
    fork_server: ForkServer | None = None,
    handle_signals: bool = True,
    stop_requests: StopRequests | None = None,
) -> WorkReport:
    """Run the jobs of `queues` and of their fail queues; None stands for all queues with a handler.

    `processes`: the number of worker processes; None for one per CPU; 0 to work in this process, the only
    number for a storage that is not `shared`. In this process, a handler that blocks the event loop for
    longer than the lease loses all runs.

    `until`: "stopped" ends at a stop signal or a stop request: claim no more, wait `grace` seconds, release
    the remaining runs; a second signal releases them at once. "empty" ends when no job in these queues is
    active, blocked or waiting. Jobs scheduled for later count as waiting; the tick of a periodic task and the
    jobs of paused queues do not. "idle" ends when no job is active, blocked or due; it leaves scheduled jobs.

    `lease`: seconds a lease lasts; it is renewed every `heartbeat` seconds, None for a third of the lease.
    `poll`: seconds after which a job is found if its wake-up was lost. `name`: the holder of the leases; None
    for a unique name. `max_runs`, `max_memory`: the number of runs, and the resident memory in MB, after
    which a worker process ends its runs and is replaced. `reference`: the application as "module:name", if
    the caller knows it.

    `progress`: called with the report so far when it has changed, at most five times a second. `health`: a
    listening socket on which /healthz and /readyz are answered. `fork_server`: a fork server that was started
    early; it is closed at the end. `handle_signals`: False leaves the signals to the program.
    `stop_requests`: the requests of `app.stop`.

    Raise ConfigurationError, UnknownTask, StorageError, and the errors of @app.lifespan in this process.
    """
    refuse_during_import()
    enable_dibs_loggers()
    times = check_arguments(
        until, processes, {"lease": lease, "heartbeat": heartbeat, "poll": poll, "grace": grace}
    )
    limits = make_process_limits(max_runs, max_memory)
    # Before the storage is opened: the fork server imports its modules at the same time.
    with repeated_warnings_once_a_minute(), open_fork_server(processes, fork_server) as server:
        async with app:
            if server is not None:
                server.preload(parse_scheme(app.storage.url))
            plan = make_plan(app, queues, processes, reference, times, name, limits=limits)
            requests = stop_requests or StopRequests()
            session = _WorkSession(app, app.storage, plan, progress, server, requests)
            async with serve_health(health, session.health):
                with signals.on_stop_signal(session.on_signal) if handle_signals else nullcontext():
                    return await session.run(until, plan.grace)


class _WorkSession:
    """The state of one call of `run`: the supervisor, and the tasks that run concurrently with it.

    These tasks reap and prune the queues, enqueue ticks of periodic tasks, and report progress.
    """

    def __init__(
        self,
        app: Dibs,
        storage: Storage,
        plan: WorkPlan,
        progress: ProgressCallback | None,
        fork_server: ForkServer | None,
        stop_requests: StopRequests,
    ) -> None:
        self._storage = storage
        self._queues = plan.queues
        self._poll = plan.poll
        self._progress = progress
        self._report = WorkReport()
        self._maintenance = Maintenance(
            storage, plan.queues, self._report, lease=plan.lease, heartbeat=plan.heartbeat
        )
        self._supervisor = Supervisor(app, storage, plan, self._report, fork_server)
        self._declared_settings = app.handlers.declared_settings(plan.queues)
        self._record = WorkerRecordKeeper(
            storage=storage,
            plan=plan,
            settings=self._declared_settings,
            get_state=lambda: self._supervisor.worker_state,
        )
        self._periodic_tasks = PeriodicTasks(storage, [app.handlers[queue] for queue in plan.queues])
        self._stop_requests = stop_requests
        #: The grace of the first request to stop, in seconds; None for the grace of the call.
        self._grace: float | None = None
        self._started_at = time.monotonic()

    def health(self) -> Health:
        return self._supervisor.health

    async def run(self, until: Until, grace: float) -> WorkReport:
        loops = [
            *self._maintenance.loops(),
            self._periodic_tasks.keep_enqueueing_missing_ticks(),
            self._record.keep(),
            self._keep_reporting(),
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await self._wait_for_first(self._wait_for_stop(), self._work(until))
            await self._drain(grace if self._grace is None else self._grace)
        finally:
            for task in tasks:
                task.cancel()
            # Also if this call is cancelled: runs are released and all worker processes end.
            await asyncio.shield(self._stop())
        return await self._final_report()

    async def _stop(self) -> None:
        await self._supervisor.stop()
        await self._record.remove()

    async def _work(self, until: Until) -> None:
        """Start the workers as soon as the storage is available, and wait for the end of the work."""
        await self._warn_of_unserved_queues()
        # Before the first claim: a tick of a schedule that was removed must not run.
        await self._periodic_tasks.apply_declared_schedules()
        await wait_until_available(
            lambda: apply_declared_settings(self._storage, self._declared_settings), "no settings"
        )
        await self._supervisor.start()
        if until == "stopped":
            await asyncio.Event().wait()
        else:
            await self._wait_until_empty(scheduled_counts=until == "empty")

    async def _wait_for_first(self, *events: Any) -> None:
        """Wait for the first of the awaitables `events`. Raise the error of a supervisor that has failed."""
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(event) for event in events]
        try:
            failure = self._supervisor.failure
            done, _ = await asyncio.wait([*tasks, failure], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    def on_signal(self) -> None:
        self._stop_requests.put(StopRequest(urgent=True))

    async def _wait_for_stop(self) -> None:
        self._grace = (await self._stop_requests.get()).grace

    async def _drain(self, grace: float) -> None:
        if held := self._supervisor.count_held_runs():
            logger.info("stopping: %d runs have %g s to end; a second signal releases them now", held, grace)
        try:
            async with asyncio.timeout(grace) as limit:
                await self._wait_for_first(self._supervisor.drain(), self._shorten_grace(limit))
        except TimeoutError:
            if held := self._supervisor.count_held_runs():
                logger.warning("%d runs have not ended within the grace: they are released", held)

    async def _shorten_grace(self, limit: asyncio.Timeout) -> None:
        """Apply further requests to the time limit of a stop, and return at the second signal."""
        loop = asyncio.get_running_loop()
        while not (request := await self._stop_requests.get()).urgent:
            if request.grace is not None:
                limit.reschedule(min(limit.when() or 0.0, loop.time() + request.grace))

    async def _wait_until_empty(self, *, scheduled_counts: bool) -> None:
        """Wait until no job of these queues is active, blocked or waiting.

        The next tick of a periodic task and the waiting jobs of paused queues do not count, and the jobs that
        are scheduled for later only with `scheduled_counts`.
        """
        while True:
            if self._supervisor.count_held_runs():
                await self._supervisor.changes.wait()
                continue
            await asyncio.sleep(IDLE_BEFORE_COUNT)
            if not self._supervisor.count_held_runs():
                claimed = self._report.total("claimed")
                # Twice: a job that changes its state during the first count may be missing in it. A claim
                # since the first count proves that an estimated count was wrong.
                if (
                    await self._are_queues_empty(scheduled_counts=scheduled_counts)
                    and await self._are_queues_empty(scheduled_counts=scheduled_counts)
                    and claimed == self._report.total("claimed")
                ):
                    return
                await asyncio.sleep(PROGRESS_INTERVAL)

    async def _are_queues_empty(self, *, scheduled_counts: bool) -> bool:
        try:
            counts = await self._storage.counts(self._queues)
            ignored: set[str] = set()
            if scheduled_counts:
                ignored = await self._periodic_tasks.queues_with_ticks_only(counts)
            waiting = {
                queue: c.waiting - (0 if scheduled_counts else c.scheduled) for queue, c in counts.items()
            }
            if any(number > 0 and queue not in ignored for queue, number in waiting.items()):
                ignored = {*ignored, *await self._paused_queues()}
            elif not scheduled_counts and any(c.approximate for c in counts.values()):
                # The numbers may be estimates. Wait for two claims, which find a job that is due.
                await asyncio.sleep(2 * self._poll)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next count may succeed
            logger.warning("counting the queues failed, trying again: %s", summarize_exception(error))
            return False
        return not any(
            (waiting[queue] > 0 and queue not in ignored) or c.blocked or c.active > c.handed_off
            for queue, c in counts.items()
        )

    async def _paused_queues(self) -> set[str]:
        return {info.name for info in await self._storage.queues() if info.settings.paused}

    async def _warn_of_unserved_queues(self) -> None:
        infos = await wait_until_available(self._storage.queues, "no list of queues")
        known = {info.name for info in without_reserved(infos)}
        unserved = sorted(known - set(self._queues))
        if unserved:
            logger.warning("queues without a handler on this worker: %s", ", ".join(unserved))

    async def _keep_reporting(self) -> None:
        reported = 0
        changes = self._supervisor.changes
        while self._progress is not None:
            if reported == changes.count:
                await changes.wait()
            reported = changes.count
            await self._call_progress(self._progress)
            await asyncio.sleep(PROGRESS_INTERVAL)

    async def _call_progress(self, progress: ProgressCallback) -> None:
        self._report.seconds = time.monotonic() - self._started_at
        result = progress(self._report)
        if inspect.isawaitable(result):
            await result

    async def _final_report(self) -> WorkReport:
        self._report.seconds = time.monotonic() - self._started_at
        if self._progress is not None:
            await self._call_progress(self._progress)
        return self._report
