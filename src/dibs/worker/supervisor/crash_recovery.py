"""Crash recovery: the supervisor settles the runs of a dead worker process at once.

Without the recovery, these jobs would wait until their lease expires.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define, frozen

from dibs.client.calls.handler import Handler
from dibs.client.stored_queue import wake_flows_of
from dibs.client.work_report import WorkReport
from dibs.errors import DibsError, Refused
from dibs.model.error_text import summarize_exception
from dibs.model.job import Error, Job
from dibs.model.requests import Fail, Release, RetryLater, SettleAction, Settlement
from dibs.model.results import SettleResult
from dibs.model.retry import is_exhausted
from dibs.model.schedule import is_tick_id
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.protocol import Storage
from dibs.worker.execution.invocation import timeout_error
from dibs.worker.execution.outcome import add_next_tick, counter_name
from dibs.worker.supervisor.availability import wait_until_available
from dibs.worker.supervisor.held_runs import HeldRun

logger = logging.getLogger("dibs.worker")

#: Seconds between two attempts to settle while the storage is unavailable.
RETRY_EVERY: Final = 0.5
#: The longest delay, in ms, before the start or the evaluation of a flow runs again after a crash. An
#: evaluation keeps its number of stalls for the life of its flow, so its backoff would soon be a minute.
LONGEST_FLOW_DELAY: Final = 1000


@frozen
class Crash:
    """An exit of a worker process that the supervisor did not cause."""

    #: The `started` array of the process: 0 for runs whose handler had not started.
    started: Sequence[float]
    #: The error of the runs that had started.
    error: Error


@define(eq=False)
class CrashRecovery:
    """The settlement of the runs of dead worker processes. It also counts these runs in the report."""

    _storage: Storage
    _handlers: Mapping[str, Handler]
    _report: WorkReport

    async def settle_runs(self, held_runs: Sequence[HeldRun], crash: Crash | None) -> None:
        """Settle the runs of one process, retrying until the storage is available.

        `crash` is None if the supervisor killed the process because some of these runs overran.
        """
        for queue in dict.fromkeys(held_run.queue for held_run in held_runs):
            held = [held_run for held_run in held_runs if held_run.queue == queue]
            actions = [
                recovery_action(held_run, self._handlers[queue], crash, random.random())  # noqa: S311 - jitter keeps no secrets
                for held_run in held
            ]
            actions = await self._with_next_ticks(queue, held, actions)
            settlements = [
                Settlement(id=held_run.run.id, fence=held_run.run.fence, action=action)
                for held_run, action in zip(held, actions, strict=True)
            ]
            results = await self._settle(queue, settlements)
            self._report.add(queue, Counter(map(counter_name, actions, results)))
            failed = [one.id for one in settlements if isinstance(one.action, Fail)]
            await self._wake_flows(queue, failed)

    async def _with_next_ticks(
        self, queue: str, held: Sequence[HeldRun], actions: list[SettleAction]
    ) -> list[SettleAction]:
        """Return the actions, with the next tick added for the jobs of schedules.

        The messages of a worker do not have the data of its jobs, because only these few need it here.
        """
        ids = [
            one.run.id
            for one, action in zip(held, actions, strict=True)
            if is_tick_id(one.run.id) and not isinstance(action, Release)
        ]
        if not ids:
            return actions
        slots = await wait_until_available(lambda: self._storage.get(queue, ids), "no jobs", lambda _: True)
        current = {id: slot.current for id, slot in zip(ids, slots, strict=True)}
        return [
            self._with_next_tick(one, current.get(one.run.id), action)
            for one, action in zip(held, actions, strict=True)
        ]

    def _with_next_tick(self, held_run: HeldRun, job: Job | None, action: SettleAction) -> SettleAction:
        if job is None:
            return action
        handler, run = self._handlers[held_run.queue], held_run.run
        times: Any = {"claimed_at": run.claimed_at, "received_at": held_run.received_at}
        try:
            return add_next_tick(handler, run.id, job.data, action, **times)
        except Refused:
            logger.exception("%s/%s: the next tick could not be computed", held_run.queue, run.id)
            return action

    async def _wake_flows(self, queue: str, failed: Sequence[str]) -> None:
        """Wake the flows of failed runs, whose attributes the supervisor does not know."""
        try:
            if failed:
                await wake_flows_of(self._storage, queue, failed)
        except DibsError as error:
            logger.warning("%s: flows were not woken, and continue by their timers: %s", queue, error)

    async def _settle(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
        while True:
            try:
                return await self._storage.settle(queue, settlements)
            except Refused:
                # Unexpected: the only value of the user's in these settlements is a delay. The jobs return to
                # their queue when the lease is dropped.
                logger.exception("%s: the storage refused to settle the runs of a dead process", queue)
                return [SettleResult("refused") for _ in settlements]
            except Exception as error:  # noqa: BLE001 - a storage may raise anything; settling twice is safe
                logger.warning(
                    "%s: settling the runs of a dead process failed, trying again: %s",
                    queue,
                    summarize_exception(error),
                )
                await asyncio.sleep(RETRY_EVERY)


def recovery_action(
    held_run: HeldRun, handler: Handler, crash: Crash | None, jitter_factor: float
) -> SettleAction:
    """Return the settlement of a run whose process has died.

    A run that overran counts as timed out. After a crash, a run whose handler had started counts as stalled.
    All other runs are released: they can start again at once.
    """
    run, limits = held_run.run, handler.limits.with_overrides(held_run.run.overrides)
    action: SettleAction = Release()
    if held_run.overran:
        error = timeout_error(run.timeout)
        if is_exhausted(run.timeouts, limits.max_timeouts):
            action = Fail(error=error)
        else:
            delay = limits.backoff.delay(run.timeouts + 1, jitter_factor)
            action = RetryLater(cause="timeout", delay=delay, error=error)
    elif crash is not None and crash.started[run.index]:
        delay = limits.backoff.delay(run.stalls + 1, jitter_factor)
        if held_run.queue in (FLOWS, EVALUATIONS):
            delay = min(delay, LONGEST_FLOW_DELAY)
        if is_exhausted(run.stalls, limits.max_stalls):
            delay = 0  # the next claim fails the job
        action = RetryLater(cause="stall", delay=delay, error=crash.error)
    return action
