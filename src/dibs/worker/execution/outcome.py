"""From the verdict on a run to its settlement: the settle action, the hook of the task, and a fallback."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from attrs import define, field

from dibs.model import run_outcome
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, End, Fail, RetryLater, SettleAction
from dibs.model.results import SettleResult
from dibs.worker.execution.hooks import call_hook
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.periodic import with_next_tick

logger = logging.getLogger("dibs.worker")


@define(eq=False)
class RunOutcomes:
    """The decision how each ended run is settled: completed, failed, cancelled, released or retried.

    `settle` is called once per run, with its settle action.
    """

    _settle: Callable[[Invocation, SettleAction], None]
    #: References to the running hooks: the event loop keeps only weak ones.
    _hooks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def settle_by_verdict(self, invocation: Invocation, verdict: run_outcome.Verdict) -> None:
        """Choose the action for a run by the verdict on its handler, and settle the run."""
        action = run_outcome.settle_action(
            invocation.job,
            invocation.limits,
            verdict,
            stop=invocation.stop_reason,
            handled=invocation.handler.handles_failure,
            jitter_factor=random.random(),  # noqa: S311 - jitter keeps no secrets
        )
        if not isinstance(verdict, run_outcome.Returned) or logger.isEnabledFor(logging.DEBUG):
            _log_outcome(invocation, verdict, action)
        self.settle_with_hook(invocation, action)

    def fail_stalled(self, invocation: Invocation) -> bool:
        """Fail a claimed job that has stalled too often. Return whether the job was failed.

        A run stalls if its process dies.
        """
        handled = invocation.handler.handles_failure
        failure = run_outcome.fail_if_stalled_too_often(invocation.job, invocation.limits, handled=handled)
        if failure is None:
            return False
        invocation.finished = True
        self.settle_with_hook(invocation, failure)
        return True

    def settle_with_hook(self, invocation: Invocation, action: SettleAction) -> None:
        """Settle a run with an action, which the hook of its task may change if it ends the job."""
        action = with_next_tick(invocation, action)
        if invocation.handler.after is None or not isinstance(action, End):
            self._settle(invocation, action)
            return
        task = asyncio.get_running_loop().create_task(self._call_hook(invocation, action))
        self._hooks.add(task)
        task.add_done_callback(self._hooks.discard)

    async def _call_hook(self, invocation: Invocation, action: End) -> None:
        self._settle(invocation, await call_hook(invocation, action))


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
    return "released"


def fallback_action(invocation: Invocation, reason: str) -> SettleAction | None:
    """Return the action to try after the storage refused `invocation.action`; None if there is no other.

    A result that is too large is an example of a refusal. `reason` becomes part of the error of the job.
    """
    action, handled = invocation.action, invocation.handler.handles_failure
    if isinstance(action, Complete):
        return with_next_tick(invocation, run_outcome.fail_after_refusal(reason, handled=handled))
    if isinstance(action, Fail) and (action.then or action.retention is not None):
        # The next tick is left out, as it may be the refused part. The supervisor enqueues missing ticks.
        return Fail(error=action.error, handled=action.handled)
    return None


def _log_outcome(invocation: Invocation, verdict: run_outcome.Verdict, action: SettleAction) -> None:
    level = logging.INFO if isinstance(verdict, run_outcome.Raised) else logging.DEBUG
    if logger.isEnabledFor(level):
        summary = f": {_error_summary(verdict.error)}" if isinstance(verdict, run_outcome.Raised) else ""
        logger.log(
            level, "%s/%s: %s%s", *invocation.key[:2], type(action).__name__, summary,
            extra=invocation.log_fields,
        )  # fmt: skip


def _error_summary(error: Error) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type
