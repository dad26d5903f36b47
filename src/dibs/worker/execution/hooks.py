"""Calls the hook of a task (@task.after) between the end of a run and its settlement."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Final

from msgspec.structs import replace

from dibs.client.calls.handler import Ending
from dibs.model.job import EndKind
from dibs.model.requests import Complete, End, Fail
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")

#: Seconds a hook may take where the handler itself has no timeout.
TIMEOUT: Final = 60.0


async def after(run: Invocation, how: End) -> End:
    """Return the end as the hook leaves it; a hook that raises, or takes too long, changes nothing."""
    ending = _ending(run, how)
    try:
        async with asyncio.timeout(TIMEOUT if run.limits.timeout is None else run.limits.timeout / 1000):
            await _call(run, ending)
        return _changed(run, how, ending)
    except Exception:
        logger.exception("%s/%s: the hook after its end failed", *run.key[:2], extra=run.about)
        return how


async def _call(run: Invocation, ending: Ending) -> None:
    hook = run.handler.after
    assert hook is not None, "only a handler with a hook comes here"  # noqa: S101
    if inspect.iscoroutinefunction(hook):
        await hook(ending)
        return
    # On a thread, as `def` handlers are: it may block.
    said = await asyncio.to_thread(hook, ending)
    if inspect.isawaitable(said):
        await said


def _ending(run: Invocation, how: End) -> Ending:
    return Ending(
        queue=run.handler.queue,
        id=run.job.id,
        fence=run.fence,
        attempt=run.job.attempts,
        kind=_kind(how),
        result=_result(run, how),
        error=how.error if isinstance(how, Fail) else None,
    )


def _kind(how: End) -> EndKind:
    if isinstance(how, Complete):
        return "completed"
    return "failed" if isinstance(how, Fail) else "cancelled"


def _result(run: Invocation, how: End) -> object:
    if not isinstance(how, Complete) or how.result is None:
        return None
    # A child process sends its result encoded; what was returned here is still at hand.
    return run.value if run.handler.executor != "process" else run.handler.serde.decode(how.result)


def _changed(run: Invocation, how: End, ending: Ending) -> End:
    retention = how.retention if ending.retention is None else ending.retention.to_model()
    if isinstance(how, Complete):
        return replace(how, result=run.handler.serde.encode(ending.result), retention=retention)
    return replace(how, retention=retention)
