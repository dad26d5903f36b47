"""What becomes of a run that ended here: a verdict, a settlement, and the hook between them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from dibs.model import decide
from dibs.model.job import Error
from dibs.model.requests import End, How
from dibs.worker.execution import hooks
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.schedules import carried_on

logger = logging.getLogger("dibs.worker")


class Ends:
    """Decides how runs are settled, and hands each to `settle`, once."""

    def __init__(self, settle: Callable[[Invocation, How], None]) -> None:
        self._settle = settle
        self._hooks: set[asyncio.Task[None]] = set()

    def ended(self, run: Invocation, verdict: decide.Verdict) -> None:
        """Take what came of a handler."""
        how = decide.settlement(
            run.job,
            run.limits,
            verdict,
            stop=run.stop,
            handled=run.handler.handles_failure,
            luck=random.random(),  # noqa: S311 - jitter keeps no secrets
        )
        if not isinstance(verdict, decide.Returned) or logger.isEnabledFor(logging.DEBUG):
            _log(run, verdict, how)
        self.decided(run, how)

    def decided(self, run: Invocation, how: How) -> None:
        """Take the settlement of a run; its hook may change an end."""
        how = carried_on(run, how)
        if run.handler.after is None or not isinstance(how, End):
            self._settle(run, how)
            return
        hook = asyncio.get_running_loop().create_task(self._settle_hooked(run, how))
        self._hooks.add(hook)
        hook.add_done_callback(self._hooks.discard)

    async def _settle_hooked(self, run: Invocation, how: End) -> None:
        self._settle(run, await hooks.after(run, how))


def _log(run: Invocation, verdict: decide.Verdict, how: How) -> None:
    level = logging.INFO if isinstance(verdict, decide.Raised) else logging.DEBUG
    if logger.isEnabledFor(level):
        said = f": {_summary(verdict.error)}" if isinstance(verdict, decide.Raised) else ""
        logger.log(level, "%s/%s: %s%s", *run.key[:2], type(how).__name__, said, extra=run.about)


def _summary(error: Error) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type
