"""The call of the hook of a task (@task.after), between the end of a run and its settlement."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

from msgspec.structs import replace

from dibs.client.calls.handler import Ending
from dibs.model.job import EndKind
from dibs.model.requests import Complete, End, Fail
from dibs.worker.execution import forks
from dibs.worker.execution.invocation import Invocation, encode_result
from dibs.worker.execution.outcome_log import log_hook_error

#: Seconds a hook may take if its handler has no timeout.
DEFAULT_TIMEOUT: Final = 60.0
#: Seconds an `async def` hook may continue after its cancellation. The supervisor kills a process in which a
#: run has missed its deadline by a second.
CANCEL_SECONDS: Final = 0.5


async def call_hook(invocation: Invocation, action: End, context: Context | None = None) -> End:
    """Call the hook, and return the action with the result and retention that the hook has set.

    Return the action unchanged if the hook raises, or exceeds the timeout of the handler. Never raises.
    `context` has the context variables of the hook; None for a copy of the current ones.
    """
    try:
        ending = _make_ending(invocation, action)
        error = await _run_hook(invocation, ending, context or copy_context())
        if error is None:
            return _apply_hook_changes(invocation, action, ending)
    except BaseException as raised:  # noqa: BLE001 - the user's serde, or a cancellation by another task
        error = raised
    log_hook_error(invocation, error)
    return action


async def _run_hook(invocation: Invocation, ending: Ending, context: Context) -> BaseException | None:
    """Call the hook in a task of its own, and return its error; None if it returned in time."""
    timeout = invocation.limits.timeout
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout / 1000
    task = asyncio.get_running_loop().create_task(call_hook_function(invocation, ending), context=context)
    try:
        # Not asyncio.timeout: that would wait for a hook which ignores its cancellation.
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)
            return TimeoutError(f"the hook took longer than {seconds:g} s")
        return task.result()
    finally:
        task.cancel()


async def call_hook_function(invocation: Invocation, ending: Ending) -> BaseException | None:
    """Call the hook and return its error, or None. Never raises: a SystemExit would end the worker."""
    hook = invocation.handler.after
    assert hook is not None, "bug in dibs: call_hook was called for a handler without a hook"  # noqa: S101
    try:
        if inspect.iscoroutinefunction(hook):
            with forks.ending_in_child(invocation):
                await hook(ending)
            return None
        # On a thread, like a `def` handler: the hook may block.
        returned, error = await asyncio.to_thread(_call_on_thread, invocation, hook, ending)
        if inspect.isawaitable(returned):
            await returned
    except BaseException as raised:  # noqa: BLE001 - contained like an error of a handler
        return raised
    return error


def _call_on_thread(
    invocation: Invocation, hook: Callable[[Ending], Any], ending: Ending
) -> tuple[Any, BaseException | None]:
    """Return the result of the hook and its error. A future would not pass on a StopIteration."""
    try:
        with forks.ending_in_child(invocation):
            return hook(ending), None
    except BaseException as raised:  # noqa: BLE001 - contained like an error of a handler
        return None, raised


def _make_ending(invocation: Invocation, action: End) -> Ending:
    return Ending(
        queue=invocation.handler.queue,
        id=invocation.job.id,
        fence=invocation.fence,
        attempt=invocation.job.attempts,
        kind=_end_kind(action),
        result=_result_for_hook(invocation, action),
        error=None if isinstance(action, Complete) else action.error,
        data=_data_for_hook(invocation),
        limits=invocation.limits.in_seconds(),
    )


def _data_for_hook(invocation: Invocation) -> Any:
    payload = invocation.job.data.payload
    try:
        return invocation.handler.serde.decode(payload)
    except ValueError:
        return payload


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
        result, then = encode_result(invocation.handler, ending.result), (*action.then, *ending.follow_ups)
        return replace(action, result=result, retention=retention, then=then)
    if isinstance(action, Fail):
        return replace(action, retention=retention, then=(*action.then, *ending.follow_ups))
    return replace(action, retention=retention)
