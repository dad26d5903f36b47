"""Runs what is due, with the worker's own parts: the payload is decoded, the result encoded, as always.

One lease, no supervisor, no processes: who asks for runs waits for them, so nothing has to be waited for
beside them, and a test can tell when all is done without asking the clock on the wall.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from msgspec.structs import replace

from dibs.client.app import Dibs
from dibs.client.calls.current_job import CurrentJob
from dibs.client.work_report import WorkReport
from dibs.errors import WaitTimeout
from dibs.maintenance.reap import reap
from dibs.model import run_outcome
from dibs.model.job import Job
from dibs.model.requests import End, SettleAction
from dibs.model.results import ClaimResult
from dibs.testing.clock import ManualClock
from dibs.worker.dispatch.round_trip import settle_singly
from dibs.worker.execution.executor import Executor
from dibs.worker.execution.hooks import call_hook
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import counter_name, fallback_action
from dibs.worker.execution.periodic import with_next_tick
from dibs.worker.processes.child_main import enter_lifespan
from dibs.worker.processes.isolated_executor import IsolatedExecutor
from dibs.worker.supervisor.periodic_tasks import PeriodicTasks
from dibs.worker.work_plan import queues_to_serve

#: The most runs at a time.
WIDTH: Final = 100
#: The lease of what runs here, in ms. Time stands still meanwhile, unless a handler moves it.
LEASE: Final = 86_400_000


class Stage:
    """One call of run: from the first claim until nothing is due and nothing runs."""

    def __init__(self, app: Dibs, clock: ManualClock, report: WorkReport, most: int) -> None:
        self._app = app
        self._clock = clock
        self._storage = clock.quiet
        self._report = report
        self._most = most
        # In this process, also executor="process": a test sees what it patched, and waits for no start.
        handlers = [replace(app.handlers[queue], executor="auto") for queue in queues_to_serve(app, None)]
        handlers.sort(key=lambda handler: -handler.queue_priority)
        self._handlers = {handler.queue: handler for handler in handlers}
        self._periodic_tasks = PeriodicTasks(self._storage, handlers)
        self._running: dict[tuple[str, str, int], Invocation] = {}
        self._ended: list[tuple[Invocation, run_outcome.Verdict]] = []
        self._moved = asyncio.Event()
        self._executor = Executor(
            [0.0],
            IsolatedExecutor(self._storage, b""),
            ended=self._end,
            timed_out=self._late,
            overran=self._overran,
            killable=False,
        )

    async def run(self, *, ticks: bool) -> int | None:
        """Run all that is due, and all that becomes due by that; return when the next job will be.

        Without `ticks` those of periodic tasks do not count: there is always a next one.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._executor.close)
            resources = await enter_lifespan(self._app, stack)
            queues = tuple(self._handlers)
            lease = (await self._storage.grant(queues, LEASE, "dibs.testing")).lease
            try:
                with self._heard():
                    due = await self._run(lease, resources)
                resting = set() if ticks else await self._resting()
                return min((at for queue, at in due.items() if queue not in resting), default=None)
            finally:
                for run in self._running.values():
                    self._executor.interrupt(run, "release")
                await self._storage.drop(queues, lease, 1_000_000)

    async def plant(self) -> None:
        """Let each periodic task have its next tick, as a worker does that is there all the time."""
        await self._periodic_tasks.plant()

    async def _resting(self) -> set[str]:
        return await self._periodic_tasks.resting(await self._storage.counts(list(self._handlers)))

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Look again after whatever is asked of the storage meanwhile, be it by a handler."""
        before, self._clock.heard = self._clock.heard, self._moved.set
        try:
            yield
        finally:
            self._clock.heard = before

    async def _run(self, lease: str, resources: Any) -> dict[str, int]:
        """Return when in each queue the next job will be due."""
        await self.plant()
        for queue in self._handlers:
            await reap(self._storage, queue)
        while True:
            await self._settle()
            await self._pass_cancels_on(lease)
            # Cleared before the storage is asked: what moves while it is asked is not missed.
            self._moved.clear()
            claims = {queue: await self._claim(queue, lease, resources) for queue in self._handlers}
            if any(claim.jobs for claim in claims.values()) or self._ended:
                continue
            if not self._running:
                return {queue: at for queue, claim in claims.items() if (at := claim.next_due) is not None}
            await self._moved.wait()

    async def _claim(self, queue: str, lease: str, resources: Any) -> ClaimResult:
        claim = await self._storage.claim(queue, lease, max(1, WIDTH - len(self._running)))
        for job in claim.jobs:
            self._start(queue, job, resources)
        return claim

    def _start(self, queue: str, job: Job, resources: Any) -> None:
        numbers = self._report.queue(queue)
        numbers.claimed += 1
        if self._report.total("claimed") > self._most:
            raise WaitTimeout(
                f"not empty after {self._most} runs: does a job of {queue!r} enqueue itself? For what never "
                "ends use run_due() and advance(), or say how many runs you expect with most="
            )
        run = Invocation(self._handlers[queue], job, 0)
        self._running[run.key] = run
        refused = run_outcome.fail_if_stalled_too_often(job, run.limits, handled=run.handler.handles_failure)
        if refused is not None:
            self._ended.append((run, run_outcome.Raised(error=refused.error, permanent=True)))
            return
        loop = asyncio.get_running_loop()
        run.current = CurrentJob(self._storage, queue, job, loop, run.start_timeout(), resources)
        self._executor.start(run)

    async def _pass_cancels_on(self, lease: str) -> None:
        if not self._running:
            return
        for queue, state in (await self._storage.renew(tuple(self._handlers), lease, LEASE)).items():
            for (whose, id, _), run in self._running.items():
                if whose == queue and id in state.cancel_requested:
                    self._executor.interrupt(run, "cancel")

    # -- ends ----------------------------------------------------------------------------------------

    def _end(self, run: Invocation, verdict: run_outcome.Verdict) -> None:
        self._ended.append((run, verdict))
        self._moved.set()

    def _late(self, run: Invocation, seconds: float) -> None:
        """It was told to stop; there is no supervisor here to watch whether it does."""

    def _overran(self, run: Invocation) -> None:
        """It was settled already, and a thread cannot be ended: let it be."""

    async def _settle(self) -> None:
        while self._ended:
            run, verdict = self._ended.pop(0)
            await self._tell(run, await self._decided(run, verdict))
            del self._running[run.key]

    async def _decided(self, run: Invocation, verdict: run_outcome.Verdict) -> SettleAction:
        handled = run.handler.handles_failure
        # As if no time had passed since its claim: none has, by the clock that schedules go by here.
        run.received_at = time.monotonic()
        how = with_next_tick(
            run, run_outcome.settle_action(run.job, run.limits, verdict, stop=run.stop, handled=handled)
        )
        return await call_hook(run, how) if run.handler.after and isinstance(how, End) else how

    async def _tell(self, run: Invocation, how: SettleAction) -> None:
        run.action = how
        brought = await settle_singly(self._storage, run.handler.queue, [run])
        if brought.error is not None:
            raise brought.error
        [answer] = brought.results
        again = fallback_action(run, answer.reason) if answer.status == "refused" else None
        if again is not None:
            await self._tell(run, again)
            return
        self._report.add(run.handler.queue, Counter([counter_name(how, answer)]))
