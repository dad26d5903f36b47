"""A worker for tests, built from the executor and the settlement of the real worker.

It has one lease, and neither a supervisor nor processes. `run_due` returns when every run has ended, so a
test needs no real time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import copy_context
from typing import Any, Final

from attrs import evolve

from dibs.app import Dibs
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.client.connection.caller_thread import CALLER_THREAD, HandlerThread
from dibs.client.connection.transactions import StepTransactions
from dibs.client.work_report import WorkReport
from dibs.errors import WaitTimeout
from dibs.maintenance.declared_settings import apply_declared_settings
from dibs.maintenance.flow_repair import repair_flows
from dibs.maintenance.reap import reap
from dibs.model import run_outcome
from dibs.model.job import Job
from dibs.model.requests import End, SettleAction
from dibs.model.results import ClaimResult
from dibs.model.wakeup import FLOWS, with_wake_up
from dibs.testing.clock import ManualClock
from dibs.worker.dispatch.round_trip import settle_singly
from dibs.worker.execution.executor import Executor
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import (
    action_at_claim,
    call_hook,
    choose_action,
    counter_name,
    fallback_action,
    with_next_tick,
)
from dibs.worker.processes.child_main import enter_lifespan
from dibs.worker.processes.isolated_executor import IsolatedExecutor
from dibs.worker.supervisor.maintenance import PeriodicTasks
from dibs.worker.work_plan import queues_to_serve

#: Largest number of runs at the same time.
MAX_RUNNING: Final = 100
#: How long the lease lasts, in ms: a day. The manual clock stands still during a run unless a handler moves
#: it, so the worker need not renew the lease.
LEASE_MS: Final = 86_400_000


class InlineWorker:
    """A worker for one call of `run_due`, in the process and on the event loop of the test."""

    def __init__(self, app: Dibs, clock: ManualClock, report: WorkReport, max_runs: int) -> None:
        self._app = app
        self._clock = clock
        self._storage = clock.silent_storage
        self._report = report
        self._max_runs = max_runs
        # "auto" replaces executor="process": in this process a handler sees the patches of the test, and the
        # test does not wait for the start of a process.
        handlers = [evolve(app.handlers[queue], executor="auto") for queue in queues_to_serve(app, None)]
        handlers.sort(key=lambda handler: -handler.queue_priority)
        self._handlers = {handler.queue: handler for handler in handlers}
        self._periodic_tasks = PeriodicTasks(self._storage, handlers)
        self._running: dict[tuple[str, str, int], Invocation] = {}
        #: The ended runs, each with the verdict on its handler, or the action of a job that may not start.
        self._ended_runs: list[tuple[Invocation, run_outcome.Verdict | SettleAction]] = []
        self._change_event = asyncio.Event()
        caller = CALLER_THREAD.get()
        self._executor = Executor(
            [0.0],
            IsolatedExecutor(self._storage, {}),
            ended=self._run_ended,
            timed_out=self._ignore_timeout,
            overran=self._ignore_overrun,
            killable=False,
            start_handler=caller.start if isinstance(caller, HandlerThread) else None,
        )

    async def run_due(self, *, ticks: bool) -> int | None:
        """Run all due jobs, and the due jobs that these enqueue.

        Return when the next job is due, in ms since the epoch, or None if no job is scheduled. With
        `ticks=False` the next ticks of periodic tasks are ignored: a periodic task always has one, so the
        result would never be None.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._executor.close)
            resources = await enter_lifespan(self._app, stack)
            self._executor.context = copy_context()
            queues = tuple(self._handlers)
            lease = (await self._storage.grant(queues, LEASE_MS, "dibs.testing")).lease
            try:
                with self._watch_storage_calls():
                    due = await self._run_until_none_due(lease, resources)
                ignored = set() if ticks else await self._queues_with_ticks_only()
                return min((at for queue, at in due.items() if queue not in ignored), default=None)
            finally:
                for run in self._running.values():
                    self._executor.interrupt(run, "release")
                await self._storage.drop(queues, lease, 1_000_000)

    async def apply_declared_schedules(self) -> None:
        """Enqueue the next tick of each periodic task, as a starting worker does."""
        await self._periodic_tasks.apply_declared_schedules()

    async def _queues_with_ticks_only(self) -> set[str]:
        return await self._periodic_tasks.queues_with_ticks_only(
            await self._storage.counts(list(self._handlers))
        )

    @contextmanager
    def _watch_storage_calls(self) -> Iterator[None]:
        """Within the block, set `_change_event` after each call of the app or a handler to the storage."""
        before, self._clock.on_call = self._clock.on_call, self._change_event.set
        try:
            yield
        finally:
            self._clock.on_call = before

    async def _run_until_none_due(self, lease: str, resources: Any) -> dict[str, int]:
        """Run jobs until no job is due, and return the next due time of each queue, in ms."""
        await apply_declared_settings(self._storage, self._app.handlers.declared_settings(self._handlers))
        await self.apply_declared_schedules()
        if FLOWS in self._handlers:
            await repair_flows(self._storage)
        for queue in self._handlers:
            await reap(self._storage, queue)
        while True:
            await self._settle_ended_runs()
            await self._deliver_cancellations(lease)
            # Cleared before the claims, so that a change during a claim is not missed.
            self._change_event.clear()
            claims = {queue: await self._claim_and_start(queue, lease, resources) for queue in self._handlers}
            if any(claim.jobs for claim in claims.values()) or self._ended_runs:
                continue
            if not self._running:
                return {queue: at for queue, claim in claims.items() if (at := claim.next_due) is not None}
            await self._change_event.wait()

    async def _claim_and_start(self, queue: str, lease: str, resources: Any) -> ClaimResult:
        claim = await self._storage.claim(queue, lease, max(1, MAX_RUNNING - len(self._running)))
        for job in claim.jobs:
            self._start_run(queue, job, resources)
        return claim

    def _start_run(self, queue: str, job: Job, resources: Any) -> None:
        numbers = self._report.queue(queue)
        numbers.claimed += 1
        if self._report.total("claimed") > self._max_runs:
            raise WaitTimeout(
                f"jobs are left after {self._max_runs} runs, the last of queue {queue!r}; if its job "
                "enqueues itself, use run_due() and advance(), else pass a higher max_runs="
            )
        run = Invocation(self._handlers[queue], job, 0)
        self._running[run.key] = run
        if (action := action_at_claim(run)) is not None:
            self._ended_runs.append((run, action))
            return
        loop, serde = asyncio.get_running_loop(), run.handler.serde
        environment = RunEnvironment(
            self._storage,
            queue,
            loop,
            resources,
            serde,
            StepTransactions,
            unit=run.handler.unit,
            log_level=run.handler.log_level if self._storage.capabilities.output else None,
        )
        run.current = CurrentJob(environment, job, run.start_timeout())
        self._executor.start(run)

    async def _deliver_cancellations(self, lease: str) -> None:
        if not self._running:
            return
        for queue, state in (await self._storage.renew(tuple(self._handlers), lease, LEASE_MS)).items():
            for (run_queue, id, _), run in self._running.items():
                if run_queue == queue and id in state.cancel_requested:
                    self._executor.interrupt(run, "cancel")

    # -- ended runs ----------------------------------------------------------------------------------------

    def _run_ended(self, run: Invocation, verdict: run_outcome.Verdict) -> None:
        self._ended_runs.append((run, verdict))
        self._change_event.set()

    def _ignore_timeout(self, run: Invocation, seconds: float) -> None:
        """Do nothing: the executor has interrupted the run, and tests have no supervisor to notify."""

    def _ignore_overrun(self, run: Invocation) -> None:
        """Do nothing: the executor has ended the run already, and a thread cannot be killed."""

    async def _settle_ended_runs(self) -> None:
        while self._ended_runs:
            run, end = self._ended_runs.pop(0)
            await self._settle_run(run, await self._choose_action(run, end))
            del self._running[run.key]

    async def _choose_action(self, run: Invocation, end: run_outcome.Verdict | SettleAction) -> SettleAction:
        # By the manual clock no time has passed since the claim, so a retry counts from now.
        run.received_at = time.monotonic()
        action = with_next_tick(run, end if isinstance(end, SettleAction) else choose_action(run, end))
        action = with_wake_up(action, run.job.id, run.job.data.attributes)
        if run.handler.after is None or not isinstance(action, End):
            return action
        return await call_hook(run, action, self._executor.context.copy())

    async def _settle_run(self, run: Invocation, action: SettleAction) -> None:
        run.action = action
        reply = await settle_singly(self._storage, run.handler.queue, [run])
        if reply.error is not None:
            raise reply.error
        [result] = reply.results
        fallback = fallback_action(run, result.reason) if result.status == "refused" else None
        if fallback is not None:
            await self._settle_run(run, fallback)
            return
        self._report.add(run.handler.queue, Counter([counter_name(action, result)]))
