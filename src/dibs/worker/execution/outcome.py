"""What becomes of a run that ended here: a verdict, a settlement, and the hook between them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from dibs.model import run_outcome
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, End, Fail, RetryLater, SettleAction
from dibs.model.results import SettleResult
from dibs.worker.execution import hooks
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.periodic import with_next_tick

logger = logging.getLogger("dibs.worker")


class Ends:
    """Decides how runs are settled, and hands each to `settle`, once."""

    def __init__(self, settle: Callable[[Invocation, SettleAction], None]) -> None:
        self._settle = settle
        self._hooks: set[asyncio.Task[None]] = set()

    def ended(self, run: Invocation, verdict: run_outcome.Verdict) -> None:
        """Take what came of a handler."""
        how = run_outcome.settle_action(
            run.job,
            run.limits,
            verdict,
            stop=run.stop,
            handled=run.handler.handles_failure,
            jitter_factor=random.random(),  # noqa: S311 - jitter keeps no secrets
        )
        if not isinstance(verdict, run_outcome.Returned) or logger.isEnabledFor(logging.DEBUG):
            _log(run, verdict, how)
        self.decided(run, how)

    def decided(self, run: Invocation, how: SettleAction) -> None:
        """Take the settlement of a run; its hook may change an end."""
        how = with_next_tick(run, how)
        if run.handler.after is None or not isinstance(how, End):
            self._settle(run, how)
            return
        hook = asyncio.get_running_loop().create_task(self._settle_hooked(run, how))
        self._hooks.add(hook)
        hook.add_done_callback(self._hooks.discard)

    async def _settle_hooked(self, run: Invocation, how: End) -> None:
        self._settle(run, await hooks.after(run, how))


def counter_name(how: SettleAction, answer: SettleResult) -> str:
    """Return the name of the WorkReport counter for a run that was settled with `how`."""
    if answer.status == "done" and isinstance(how, Complete):
        return "completed"
    if answer.status in ("lost", "refused"):
        return "lost"
    if answer.status == "cancelled" or isinstance(how, Cancelled):
        return "cancelled"
    if isinstance(how, Fail):
        return "failed"
    if isinstance(how, RetryLater):
        return {"error": "retried", "timeout": "timed_out", "stall": "stalled"}[how.cause]
    return "released"


def fallback_settlement(run: Invocation, reason: str) -> SettleAction | None:
    """Return the settlement to send after the storage refused the last one; None if there is no other."""
    how, handled = run.end, run.handler.handles_failure
    if isinstance(how, Complete):
        return with_next_tick(run, run_outcome.fail_after_refusal(reason, handled=handled))
    if isinstance(how, Fail) and (how.then or how.retention is not None):
        # Without the next tick: the supervisor plants a missing tick.
        return Fail(error=how.error, handled=how.handled)
    return None


def _log(run: Invocation, verdict: run_outcome.Verdict, how: SettleAction) -> None:
    level = logging.INFO if isinstance(verdict, run_outcome.Raised) else logging.DEBUG
    if logger.isEnabledFor(level):
        said = f": {_summary(verdict.error)}" if isinstance(verdict, run_outcome.Raised) else ""
        logger.log(level, "%s/%s: %s%s", *run.key[:2], type(how).__name__, said, extra=run.about)


def _summary(error: Error) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type
