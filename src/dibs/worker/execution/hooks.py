"""The call of the hook of a task (@task.after), between the end of a run and its settlement."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

from msgspec.structs import replace

from dibs.client.calls.handler import Ending
from dibs.model.job import EndKind
from dibs.model.requests import Complete, End, Fail
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")

#: Seconds a hook may take if its handler has no timeout.
DEFAULT_TIMEOUT: Final = 60.0


async def call_hook(invocation: Invocation, action: End) -> End:
    """Call the hook, and return the action with the result and retention that the hook has set.

    Return the action unchanged if the hook raises, or exceeds the timeout of the handler.
    """
    ending = _make_ending(invocation, action)
    timeout = invocation.limits.timeout
    try:
        async with asyncio.timeout(DEFAULT_TIMEOUT if timeout is None else timeout / 1000):
            await _call_hook_function(invocation, ending)
        return _apply_hook_changes(invocation, action, ending)
    except Exception:
        logger.exception(
            "%s/%s: the hook after the run failed; the run is settled without it",
            *invocation.key[:2], extra=invocation.log_fields,
        )  # fmt: skip
        return action


async def _call_hook_function(invocation: Invocation, ending: Ending) -> None:
    hook = invocation.handler.after
    assert hook is not None, "bug in dibs: call_hook was called for a handler without a hook"  # noqa: S101
    if inspect.iscoroutinefunction(hook):
        await hook(ending)
        return
    # On a thread, like a `def` handler: the hook may block.
    returned = await asyncio.to_thread(hook, ending)
    if inspect.isawaitable(returned):
        await returned


def _make_ending(invocation: Invocation, action: End) -> Ending:
    return Ending(
        queue=invocation.handler.queue,
        id=invocation.job.id,
        fence=invocation.fence,
        attempt=invocation.job.attempts,
        kind=_end_kind(action),
        result=_result_for_hook(invocation, action),
        error=action.error if isinstance(action, Fail) else None,
    )


def _end_kind(action: End) -> EndKind:
    if isinstance(action, Complete):
        return "completed"
    return "failed" if isinstance(action, Fail) else "cancelled"


def _result_for_hook(invocation: Invocation, action: End) -> object:
    if not isinstance(action, Complete) or action.result is None:
        return None
    handler = invocation.handler
    # A child process sends its result encoded. A handler in this process has set `return_value`.
    return invocation.return_value if handler.executor != "process" else handler.serde.decode(action.result)


def _apply_hook_changes(invocation: Invocation, action: End, ending: Ending) -> End:
    retention = action.retention if ending.retention is None else ending.retention.to_model()
    if isinstance(action, Complete):
        return replace(action, result=invocation.handler.serde.encode(ending.result), retention=retention)
    return replace(action, retention=retention)
        data=_data_for_hook(invocation),
        limits=invocation.limits.in_seconds(),
def _data_for_hook(invocation: Invocation) -> Any:
    payload = invocation.job.data.payload
    try:
        return invocation.handler.serde.decode(payload)
    except ValueError:
        return payload


