"""One call of work, from the first lease to the last: the supervisor, its duties, and when it ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from dibs.client.app import Dibs, Until
from dibs.client.work_report import WorkReport
from dibs.storage.protocol import Storage
from dibs.storage.registry import scheme_of
from dibs.worker.processes import signals
from dibs.worker.processes.fork_server import ForkServer, fork_server_for
from dibs.worker.processes.spawn import exit_if_worker_process
from dibs.worker.supervisor.health import Health, serve_health
from dibs.worker.supervisor.maintenance import Maintenance
from dibs.worker.supervisor.periodic_tasks import PeriodicTasks
from dibs.worker.supervisor.supervisor import Supervisor
from dibs.worker.work_plan import WorkPlan, check_heartbeat, make_plan

logger = logging.getLogger("dibs.worker")

Progress = Callable[[WorkReport], Awaitable[None] | None]

#: Seconds that nothing is in hand before the queues are counted: between two batches it is often so.
QUIET: Final = 0.02
#: Seconds between two calls of `progress`, and between two counts of queues where jobs wait for their time.
TICK: Final = 0.2


async def run(
    app: Dibs,
    *,
    queues: Sequence[str] | None = None,
    processes: int | None = 0,
    until: Until = "stopped",
    grace: float = 30.0,
    lease: float = 15.0,
    heartbeat: float = 5.0,
    poll: float = 1.0,
    reference: str = "",
    progress: Progress | None = None,
    health: socket.socket | None = None,
    nursery: ForkServer | None = None,
) -> WorkReport:
    """Run jobs of these queues and of their fail queues, all that have a handler if none is named.

    `processes` 0 works in this process, None in one per CPU; a storage that is not `shared` takes only 0.
    until="empty" ends when no job is waiting (also for its time, but for the tick of a periodic task, and
    what waits in a paused queue), active or blocked in these queues;
    "stopped" at SIGTERM or SIGINT: claim no more, wait `grace` seconds, release what is left; the second
    signal releases at once. The lease is `lease` seconds, renewed every `heartbeat`; `poll` seconds is
    the longest a lost wake-up can cost. `reference` is "module:name" of the application, where it is known.
    In this process a handler that blocks the event loop for longer than the lease loses all that runs here.
    `progress` is called with the report so far, at most five times a second, when it changed. On `health`,
    a listening socket, /healthz and /readyz are answered. `nursery` is where processes come from, if it was
    made ahead; it is closed.

    Raises ConfigurationError, UnknownTask, StorageError, and what @app.lifespan raises in this process.
    """
    exit_if_worker_process()
    check_heartbeat(lease, heartbeat)
    times = {"lease": lease, "heartbeat": heartbeat, "poll": poll, "grace": grace}
    # Before the storage is opened: meanwhile the stem imports what the processes will need.
    with fork_server_for(processes, nursery) as forking:
        async with app:
            if forking is not None:
                forking.preload(scheme_of(app.storage.url))
            plan = make_plan(app, queues, processes, reference, times)
            work = _Work(app, app.storage, plan, progress, forking)
            async with serve_health(health, work.health):
                return await work.run(until, grace)


class _Work:
    """The supervisor and what goes on beside it."""

    def __init__(
        self,
        app: Dibs,
        storage: Storage,
        plan: WorkPlan,
        progress: Progress | None,
        nursery: ForkServer | None,
    ) -> None:
        self._storage = storage
        self._queues = plan.queues
        self._progress = progress
        self._report = WorkReport()
        self._duties = Maintenance(storage, plan.queues, self._report, plan.heartbeat)
        self._supervisor = Supervisor(app, storage, plan, self._report, nursery)
        self._periodic_tasks = PeriodicTasks(storage, [app.handlers[queue] for queue in plan.queues])
        self._signals: asyncio.Queue[None] = asyncio.Queue()
        self._began = time.monotonic()

    def health(self) -> Health:
        return self._supervisor.health

    async def run(self, until: Until, grace: float) -> WorkReport:
        await self._name_orphans()
        with signals.on_stop_signal(lambda: self._signals.put_nowait(None)):
            duties = [*self._duties.all(), self._periodic_tasks.keep(), self._tell()]
            tasks = [asyncio.create_task(duty) for duty in duties]
            try:
                # Before anything is claimed: what was missed and is to be skipped must not run.
                await self._periodic_tasks.plant()
                await self._supervisor.begin()
                await self._first(self._signals.get(), *([self._empty()] if until == "empty" else []))
                await self._first(self._signals.get(), self._drain(grace))
            finally:
                for task in tasks:
                    task.cancel()
                # Also when this call is cancelled: what is in hand goes back, and no process stays.
                await asyncio.shield(self._supervisor.release())
        return await self._final()

    async def _first(self, *events: Any) -> None:
        """Wait for the first of these, or for what makes further work pointless."""
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(event) for event in events]
        try:
            failed = self._supervisor.failed
            done, _ = await asyncio.wait([*tasks, failed], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _drain(self, grace: float) -> None:
        if held := self._supervisor.in_hand:
            logger.info("stopping: %d runs have %g s to end; a second signal releases them now", held, grace)
        try:
            async with asyncio.timeout(grace):
                await self._supervisor.drain()
        except TimeoutError:
            logger.warning("after %g s still %d runs in hand: released", grace, self._supervisor.in_hand)

    async def _empty(self) -> None:
        """Return when nothing is left to do in these queues, nor will be without an enqueue."""
        while True:
            if self._supervisor.in_hand:
                self._supervisor.moved.clear()
                await self._supervisor.moved.wait()
                continue
            await asyncio.sleep(QUIET)
            if not self._supervisor.in_hand:
                # Twice: what comes back while it is counted may be in neither of its two states.
                if await self._nothing_left() and await self._nothing_left():
                    return
                await asyncio.sleep(TICK)

    async def _nothing_left(self) -> bool:
        try:
            counts = await self._storage.counts(self._queues)
            resting = await self._periodic_tasks.resting(counts)
            if any(c.waiting and queue not in resting for queue, c in counts.items()):
                resting = {*resting, *await self._paused()}
        except Exception as error:  # noqa: BLE001 - as below: it is counted again soon
            logger.warning("not counted: %s", error)
            return False
        return not any(
            (c.waiting and queue not in resting) or c.blocked or c.active > c.handed_off
            for queue, c in counts.items()
        )

    async def _paused(self) -> set[str]:
        return {info.name for info in await self._storage.queues() if info.settings.paused}

    async def _name_orphans(self) -> None:
        known = {info.name for info in await self._storage.queues()}
        orphans = sorted(known - set(self._queues))
        if orphans:
            logger.warning("queues without a handler on this worker: %s", ", ".join(orphans))

    async def _tell(self) -> None:
        shown = 0
        while self._progress is not None:
            if shown == self._supervisor.moves:
                self._supervisor.moved.clear()
                await self._supervisor.moved.wait()
            shown = self._supervisor.moves
            await self._show(self._progress)
            await asyncio.sleep(TICK)

    async def _show(self, progress: Progress) -> None:
        self._report.seconds = time.monotonic() - self._began
        shown = progress(self._report)
        if inspect.isawaitable(shown):
            await shown

    async def _final(self) -> WorkReport:
        self._report.seconds = time.monotonic() - self._began
        if self._progress is not None:
            await self._show(self._progress)
        return self._report
