"""From the verdict on a run to its settlement: the settle action, the hook of the task, and a fallback."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, MutableSequence
from contextvars import Context, copy_context

from attrs import define, field

from dibs.model import run_outcome
from dibs.model.requests import Cancelled, Complete, End, Fail, Release, RetryLater, SettleAction
from dibs.model.results import SettleResult
from dibs.model.wakeup import EVALUATIONS, FLOW_ATTRIBUTE, with_wake_up
from dibs.worker.execution.exception_info import verdict_on_error
from dibs.worker.execution.hooks import call_hook
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome_log import log_action
from dibs.worker.execution.periodic import may_be_tick, refuse_tick, with_next_tick

logger = logging.getLogger("dibs.worker")


@define(eq=False)
class RunOutcomes:
    """The decision how each ended run is settled: completed, failed, cancelled, released or retried.

    `settle` is called once per run, with its settle action.
    """

    _settle: Callable[[Invocation, SettleAction], None]
    #: See `Executor`: when the handler of each run began. A hook counts as a start, too, so that the
    #: supervisor gives it the time of a handler, and counts a stall if the hook kills the process.
    _started: MutableSequence[float]
    #: True if a follow-up may be in another queue: the end of a node then wakes its flow in the same step.
    _is_cross_queue: bool = True
    #: The context variables of the hooks.
    _context: Context = field(factory=copy_context, init=False)
    #: References to the running hooks: the event loop keeps only weak ones.
    _hooks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def settle_by_verdict(self, invocation: Invocation, verdict: run_outcome.Verdict) -> None:
        """Choose the action for a run by the verdict on its handler, and settle the run. Never raises."""
        action: SettleAction
        if isinstance(verdict, run_outcome.Returned):  # most runs
            action = run_outcome.complete(verdict)
        else:
            action = choose_action(invocation, verdict, random.random())  # noqa: S311 - jitter keeps no secrets
        handler = invocation.handler
        # Evaluations of flows are released after each node: a line for each would hide the other lines.
        is_routine = isinstance(action, Complete) or (
            isinstance(action, Release) and handler.queue == EVALUATIONS
        )
        if not is_routine or logger.isEnabledFor(logging.DEBUG):
            log_action(invocation, action)
        if FLOW_ATTRIBUTE in invocation.job.data.attributes and self._is_cross_queue:
            action = with_wake_up(action, invocation.job.id, invocation.job.data.attributes)
        if handler.after is None and not may_be_tick(invocation):
            self._settle(invocation, action)
        else:
            self.settle_with_hook(invocation, action)

    def refuse_start(self, invocation: Invocation) -> bool:
        """Settle a claimed job that may not start. Return whether it was settled.

        A job that has stalled too often fails; one that was claimed too late is cancelled. See `refuse_tick`
        for the job of a schedule.
        """
        job = invocation.job
        if not (job.stalls or job.data.overrides is not None or job.data.attributes):
            return False  # most jobs
        action = action_at_claim(invocation)
        if action is None:
            return False
        invocation.finished = True
        log_action(invocation, action)
        if self._is_cross_queue:
            action = with_wake_up(action, invocation.job.id, invocation.job.data.attributes)
        if isinstance(action, Release):
            self._settle(invocation, action)
        elif isinstance(action, Cancelled) or calls_hook_after_stalls(invocation):
            self.settle_with_hook(invocation, action)
        else:
            self._settle(invocation, with_next_tick(invocation, action))
        return True

    def settle_with_hook(self, invocation: Invocation, action: SettleAction) -> None:
        """Settle a run with an action, which the hook of its task may change if it ends the job."""
        action = with_next_tick(invocation, action)
        if invocation.handler.after is None or not isinstance(action, End):
            self._settle(invocation, action)
            return
        self._started[invocation.index] = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._call_hook(invocation, action))
        self._hooks.add(task)
        task.add_done_callback(self._hooks.discard)

    async def _call_hook(self, invocation: Invocation, action: End) -> None:
        changed = action
        try:
            changed = await call_hook(invocation, action, self._context.copy())
        finally:
            self._settle(invocation, changed)


def action_at_claim(invocation: Invocation) -> Fail | Cancelled | Release | None:
    """Return the action that settles a claimed job that may not start; None if it may.

    A run stalls if its process dies; too many stalls fail the job. A job whose `start_by` has passed at its
    claim is cancelled.
    """
    job = invocation.job
    if refused := refuse_tick(invocation):
        return refused
    failure = run_outcome.fail_if_stalled_too_often(job, invocation.limits) if job.stalls else None
    return failure or run_outcome.cancel_if_too_late(job)


def choose_action(
    invocation: Invocation, verdict: run_outcome.Verdict, jitter_factor: float = 1.0
) -> SettleAction:
    """Return the action that settles a run, by the verdict on its handler. Never raises.

    An error in the decision fails the run with that error: otherwise the job would stay active.
    """
    try:
        return run_outcome.settle_action(
            invocation.job,
            invocation.limits,
            verdict,
            stop=invocation.stop_reason,
            jitter_factor=jitter_factor,
        )
    except Exception as error:
        logger.exception(
            "%s/%s: the outcome of the run could not be decided",
            *invocation.key[:2], extra=invocation.log_fields,
        )  # fmt: skip
        return Fail(error=verdict_on_error(error).error)


def calls_hook_after_stalls(invocation: Invocation) -> bool:
    """Return whether to call the hook of a job that has stalled too often.

    The first stall over the limit calls the hook. A further stall shows that the hook killed its process.
    """
    most = invocation.limits.max_stalls
    return most is None or invocation.job.stalls <= most + 1


def counter_name(action: SettleAction, result: SettleResult) -> str:
    """Return the name of the QueueReport counter for a settled run."""
    if result.status == "done" and isinstance(action, Complete):
        return "completed"
    if result.status in ("lost", "refused"):
        return "lost"
    if result.status == "cancelled" or isinstance(action, Cancelled):
        return "cancelled"
    if isinstance(action, Fail):
        return "failed"
    if isinstance(action, RetryLater):
        return {"error": "retried", "timeout": "timed_out", "stall": "stalled"}[action.cause]
    return "released" if isinstance(action, Release) else "handed_off"


def fallback_action(invocation: Invocation, reason: str) -> SettleAction | None:
    """Return the action to try after the storage refused `invocation.action`; None if there is no other.

    A result that is too large is an example of a refusal. `reason` becomes part of the error of the job.
    """
    action = invocation.action
    if isinstance(action, (Complete, RetryLater)) or _has_time(action):
        fail = with_next_tick(invocation, run_outcome.fail_after_refusal(reason))
        has_wake_up = isinstance(action, Complete) and any(item.queue == EVALUATIONS for item in action.then)
        job = invocation.job
        return with_wake_up(fail, job.id, job.data.attributes) if has_wake_up else fail
    if isinstance(action, Fail) and (action.then or action.retention is not None):
        fail = Fail(error=action.error)
        with_tick = with_next_tick(invocation, fail)
        # The follow-ups of a hook are left out first: without the next tick a schedule would end.
        return fail if with_tick == action else with_tick
    return None


def _has_time(action: SettleAction) -> bool:
    """Return whether an action is the release of a handler that raised Snooze."""
    return isinstance(action, Release) and (action.delay is not None or action.run_at is not None)
