"""The supervisor: it runs no handler, renews the lease of its workers, and ends and replaces them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dibs.client.app import Dibs
from dibs.client.calls.handler import Handler
from dibs.client.work_report import WorkReport
from dibs.errors import ConfigurationError
from dibs.model.requests import SettleAction
from dibs.model.results import RenewResult
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.execution import exception_info
from dibs.worker.execution.periodic import add_next_tick
from dibs.worker.processes.child_main import ProcessSpec
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.supervisor.crash_recovery import after_crash, after_overrun, settle_left
from dibs.worker.supervisor.deadlines import DeadlineWatch
from dibs.worker.supervisor.health import Health
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
from dibs.worker.supervisor.leases import LeaseKeeper
from dibs.worker.supervisor.worker_handle import LocalWorkerHandle, ProcessWorkerHandle, WorkerHandle
from dibs.worker.work_plan import WorkPlan

logger = logging.getLogger("dibs.worker")

#: Seconds until a process that died is replaced, doubling with each that did not live long.
RESTART: Final = (0.1, 5.0)
LIVED_LONG: Final = 10.0
#: How many processes may die at their start, before any was ready, until no more are tried.
STARTS: Final = 5
#: Seconds that workers have to end once they were told to interrupt what they run.
FAREWELL: Final = 2.0


#: How a run is settled whose process is gone: by what is known of it, its handler, and luck for the jitter.
Aftermath = Callable[[HeldRun, Handler, float], SettleAction]


class Supervisor:
    """One lease over all its queues, and the members that claim and settle under it."""

    def __init__(
        self, app: Dibs, storage: Storage, plan: WorkPlan, report: WorkReport, nursery: ForkServer | None
    ) -> None:
        self._app = app
        self._storage = storage
        self._plan = plan
        self._report = report
        self._nursery = nursery
        self._loop = asyncio.get_running_loop()
        self._holdings: HeldRuns[WorkerHandle] = HeldRuns()
        self._members: set[WorkerHandle] = set()
        self._deadlines = DeadlineWatch(self._holdings, self._members, self._end_overdue)
        self._heartbeat = LeaseKeeper(
            storage,
            plan.queues,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            lease=plan.lease,
            every=plan.heartbeat,
            lost=self._lost,
            asked=self._asked,
        )
        self._lease: str | None = None
        self._old: set[str] = set()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those of the tasks that settle what died.
        self._aftermath: set[asyncio.Task[None]] = set()
        #: Some member could work, so one that cannot is no reason to give up.
        self._was_ready = False
        self._short_lives = 0
        self._born: dict[WorkerHandle, float] = {}
        #: What makes further work pointless; awaited by who runs the supervisor.
        self.failed: asyncio.Future[None] = self._loop.create_future()
        #: Set, and counted, whenever a run begins or ends, or a member comes or goes.
        self.moved = asyncio.Event()
        self.moves = 0

    @property
    def in_hand(self) -> int:
        """How many runs its members hold."""
        return len(self._holdings)

    @property
    def health(self) -> Health:
        """How it is, for whoever asks from outside."""
        able = any(member.ready and not member.leaving for member in self._members)
        return Health(
            ready=able and self._lease is not None and not self._stopping,
            stopping=self._stopping,
            processes=self._report.processes,
            running=len(self._holdings),
        )

    # -- the stages of its life ----------------------------------------------------------------------

    async def begin(self) -> None:
        """Take a lease and start all members. Raises StorageError, OutcomeUnknown."""
        self._lease = await self._heartbeat.grant()
        self._spawn(self._heartbeat.beat())
        self._spawn(self._deadlines.watch())
        for _ in range(max(1, self._plan.processes)):
            self._hire()

    async def drain(self) -> None:
        """Claim no more, and wait until nothing is in hand."""
        self._stopping = True
        for member in self._members:
            if member.ready:
                member.send(messages.DrainWorker())
            else:
                member.kill()
        while any(not member.drained for member in self._members):
            await self._moved()

    async def release(self) -> None:
        """Interrupt what still runs, end all members, and give back what is left."""
        self._stopping = True
        for member in self._members:
            member.send(messages.StopWorker())
        try:
            async with asyncio.timeout(FAREWELL):
                while any(member.ready and not member.drained for member in self._members):
                    await self._moved()
        except TimeoutError:
            pass
        await self._end_members()
        if self._aftermath:
            await asyncio.wait(self._aftermath, timeout=FAREWELL)
        for task in self._tasks:
            task.cancel()
        for lease in self._heartbeat.leases:
            await self._drop(lease)

    async def _end_members(self) -> None:
        members = list(self._members)
        for member in members:
            member.kill()
        for member in members:
            await member.gone.wait()

    async def _moved(self) -> None:
        self.moved.clear()
        await self.moved.wait()

    def _move(self) -> None:
        self.moves += 1
        self.moved.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._aftermath.discard)
        return task

    # -- members -------------------------------------------------------------------------------------

    def _hire(self) -> None:
        if self._stopping:
            return
        plan = self._plan
        spec = ProcessSpec(app=plan.reference, queues=plan.queues, parent=os.getpid(), poll=plan.poll)
        member: WorkerHandle = (
            ProcessWorkerHandle(spec, self, self._nursery)
            if plan.processes
            else LocalWorkerHandle(self._app, spec, self)
        )
        self._members.add(member)
        self._born[member] = time.monotonic()
        self._count_processes()

    def _count_processes(self) -> None:
        self._report.processes = tuple(sorted(member.pid for member in self._members if member.pid))
        self._move()

    def heard(self, member: WorkerHandle, message: messages.FromWorker) -> None:
        """Take in what a member says."""
        match message:
            case messages.RunsClaimed() | messages.RunsSettled():
                self._book(member, message)
            case messages.LeaseAdopted() | messages.ClaimReplyLost() | messages.LeaseRejected():
                self._heard_of_lease(member, message)
            case messages.ProcessReady():
                member.ready = self._was_ready = True
                self._count_processes()
                if self._lease is not None:
                    member.send(messages.UseLease(self._lease))
            case messages.RunTimedOut():
                self._deadlines.late(member, message)
            case messages.RunOverran():
                self._deadlines.overran(member, message)
                self._retire(member, message)
            case messages.WorkerDrained():
                member.drained = True
                if any(holding.overran for holding in self._holdings.of(member)):
                    member.overdue = True
                    member.end()
            case messages.StartFailed(why):
                member.broken = why
        self._move()

    def _book(self, member: WorkerHandle, message: messages.RunsClaimed | messages.RunsSettled) -> None:
        if isinstance(message, messages.RunsClaimed):
            self._holdings.claimed(member, message)
            self._report.queue(message.queue).claimed += len(message.runs)
        else:
            self._report.add(message.queue, self._holdings.ended(member, message))
            self._drop_old()

    def _heard_of_lease(
        self,
        member: WorkerHandle,
        message: messages.LeaseAdopted | messages.ClaimReplyLost | messages.LeaseRejected,
    ) -> None:
        if isinstance(message, messages.LeaseAdopted):
            member.lease = message.lease
            self._drop_old()
        elif isinstance(message, messages.ClaimReplyLost):
            self._replace_lease(message.lease)
        else:
            self._heartbeat.lose(message.lease, "the storage refused a claim under it")

    def _retire(self, member: WorkerHandle, message: messages.RunOverran) -> None:
        """Let a process with a handler that does not end finish its other runs; another takes its place.

        They have the grace of a stop for that: some have no limit, and the one that overran has to end.
        """
        self._report.overruns += 1
        what = "its process is replaced" if member.can_be_ended else "it lost its fence"
        logger.error("%s/%s: its handler goes on after its timeout; %s", message.queue, message.id, what)
        if member.can_be_ended and not member.leaving:
            member.leaving = True
            member.leaves_at = time.monotonic() + self._plan.grace
            member.send(messages.DrainWorker())
            self._hire()

    def _end_overdue(self, member: WorkerHandle) -> None:
        """End a process that does not keep deadlines; what it holds is settled when it is gone."""
        member.overdue = True
        for holding in self._holdings.of(member):
            if holding.overran and not member.leaving:
                self._report.overruns += 1
                logger.error(
                    "%s/%s: over its timeout, and process %d does not react: it is ended and replaced",
                    holding.queue, holding.run.id, member.pid,
                )  # fmt: skip
        member.end()

    def gone(self, member: WorkerHandle, reason: str) -> None:
        """Settle what a member held that is gone, and replace it if it went unasked."""
        self._members.discard(member)
        born = self._born.pop(member)
        if member.expected or (member.drained and not member.overdue):
            # What it still holds goes back with the lease.
            for holding in self._holdings.of(member):
                self._report.queue(holding.queue).released += 1
            self._holdings.forget(member)
        elif member.broken is not None or not member.ready:
            self._could_not_start(member, reason)
        elif member.overdue:
            self._leave_behind(member, after_overrun)
            if not member.leaving:
                self._hire()
        else:
            self._crashed(member, reason)
            if not member.leaving:
                self._hire_later(time.monotonic() - born)
        self._count_processes()

    def _could_not_start(self, member: WorkerHandle, reason: str) -> None:
        if self._stopping:
            return
        why = member.broken or f"{reason} while it was starting"
        hopeless = member.broken is not None or self._short_lives >= STARTS
        if self._was_ready or not hopeless:
            logger.error("a worker process could not be replaced: %s", why)
            self._hire_later(0)
        elif not self.failed.done():
            error = why if isinstance(why, BaseException) else ConfigurationError(why)
            self.failed.set_exception(error)

    def _crashed(self, member: WorkerHandle, reason: str) -> None:
        self._report.crashes += 1
        logger.error("%s; what it had started is a stall", reason)
        error = exception_info.make_error("ProcessDied", f"{reason} while it ran this")
        self._leave_behind(
            member, lambda holding, handler, luck: after_crash(holding, member.started, error, handler, luck)
        )

    def _leave_behind(self, member: WorkerHandle, how: Aftermath) -> None:
        self._aftermath.add(self._spawn(self._settle_after(member, how)))
        if self._lease is not None:
            # It may have claimed more than it could tell.
            self._replace_lease(self._lease)

    def _hire_later(self, lived: float) -> None:
        if lived >= LIVED_LONG:
            self._short_lives = 0
        pause = min(RESTART[0] * 2**self._short_lives, RESTART[1])
        self._short_lives = min(self._short_lives + 1, 20)
        self._loop.call_later(pause, self._hire)

    async def _settle_after(self, member: WorkerHandle, how: Aftermath) -> None:
        """Settle by fence what a process held that is gone, however long the storage cannot be asked."""

        def carried(left: HeldRun) -> SettleAction:
            handler, luck = self._app.handlers[left.queue], random.random()  # noqa: S311 - jitter keeps no secrets
            run, settlement = left.run, how(left, handler, luck)
            return add_next_tick(
                handler, run.id, settlement, claimed_at=run.claimed_at, received_at=left.taken
            )

        await settle_left(self._storage, self._holdings.of(member), carried, self._report)
        self._holdings.forget(member)
        self._drop_old()
        self._move()

    # -- leases --------------------------------------------------------------------------------------

    def _asked(self, queue: str, renewed: RenewResult) -> None:
        """Pass on which runs somebody asked to stop."""
        found = self._holdings.with_ids(queue, renewed.cancel_requested, renewed.now)
        for member, runs in found.items():
            member.send(messages.CancelRuns(tuple(runs)))

    def _replace_lease(self, lease: str) -> None:
        """Claim no more under a lease; it is dropped once all that is known under it has settled."""
        if lease != self._lease or self._stopping:
            return
        self._old.add(lease)
        self._lease = None
        self._spawn(self._lease_anew())

    async def _lease_anew(self) -> None:
        self._lease = await self._heartbeat.grant_patiently()
        for member in self._members:
            if member.ready:
                member.send(messages.UseLease(self._lease))
        self._drop_old()

    def _drop_old(self) -> None:
        if not self._old or self._lease is None:
            return
        if any(
            member.ready and not member.drained and member.lease != self._lease for member in self._members
        ):
            return
        for lease in [lease for lease in self._old if not self._holdings.under(lease)]:
            self._old.discard(lease)
            self._spawn(self._drop(lease))

    async def _drop(self, lease: str) -> None:
        try:
            await self._heartbeat.drop(lease)
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too
            # It is not renewed any more, so its jobs come back in time by themselves.
            logger.warning("a lease could not be given back: %s", error)

    def _lost(self, lease: str) -> None:
        """End all members at once, for others may hold what they run, and start anew."""
        self._heartbeat.forget()
        self._old.clear()
        self._lease = None
        for member in list(self._members):
            for holding in self._holdings.of(member):
                self._report.queue(holding.queue).lost += 1
            self._holdings.forget(member)
            member.kill()
        if not self._stopping:
            self._spawn(self._start_anew())

    async def _start_anew(self) -> None:
        await self._end_members()
        self._lease = await self._heartbeat.grant_patiently()
        for _ in range(max(1, self._plan.processes)):
            self._hire()
