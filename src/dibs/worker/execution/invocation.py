"""The state of one run of a claimed job, and the call of its handler."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from contextvars import Context
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from dibs.client.calls.current_job import CURRENT_JOB, RUN_LOGS, CurrentJob
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.model.error_text import summarize_exception
from dibs.model.job import Error, Job
from dibs.model.requests import SettleAction
from dibs.model.run_outcome import HandedOff, Raised, Returned, StopReason, Verdict
from dibs.model.wakeup import FLOW_ATTRIBUTE
from dibs.worker.execution import exception_info, forks

logger = logging.getLogger("dibs.worker")

#: The most characters of the text that is kept instead of a result that cannot be encoded.
MAX_DESCRIPTION: Final = 1000


class Invocation:
    """One run of a claimed job, from its claim until the storage has settled it."""

    __slots__ = (
        "action", "claimed_at", "cost", "current", "deadline", "entered", "fence", "finished", "forks",
        "handler", "index", "job", "limits", "overran", "received_at", "return_value", "seconds",
        "stop_reason", "task",
    )  # fmt: skip

    #: The object that `current_job()` returns in the handler; deleted when the handler has ended.
    current: CurrentJob
    #: The settlement of the run; set once it is decided.
    action: SettleAction

    def __init__(self, handler: Handler, job: Job, index: int, received_at: float | None = None) -> None:
        assert job.run is not None, "bug in dibs: a claim returned a job that is not active"  # noqa: S101
        self.handler = handler
        self.job = job
        self.fence = job.run.fence
        self.claimed_at = job.run.claimed_at
        own = job.data.overrides
        self.limits: HandlerLimits = handler.limits if own is None else handler.limits.with_overrides(own)
        #: The index of the run in the array of start times that the supervisor reads, see `Executor`.
        self.index = index
        #: When the claimed job arrived here, by time.monotonic().
        self.received_at = time.monotonic() if received_at is None else received_at
        #: When to stop the run, by time.monotonic(); None without a timeout.
        self.deadline: float | None = None
        #: The value that a handler in this process returned, for the hook of its task.
        self.return_value: Any = None
        #: Seconds that the handler took; None if it was not entered, or ran in a child process.
        self.seconds: float | None = None
        #: What the handler has said with `CurrentJob.spent`, in thousandths of a start; None for one start.
        self.cost: int | None = None
        #: The task of an `async def` handler, or of a child process.
        self.task: asyncio.Task[None] | None = None
        #: The value of forks.count in the process that has claimed the run.
        self.forks = forks.count
        #: True once the handler was entered.
        self.entered = False
        #: The reason why the run must stop; the first reason stays.
        self.stop_reason: StopReason | None = None
        #: True once the settlement is decided: a later result of the handler is ignored.
        self.finished = False
        #: True if the run did not stop in time. Only the exit of its process can stop it.
        self.overran = False

    @property
    def key(self) -> tuple[str, str, int]:
        """The queue, id and fence, which no other run shares."""
        return self.handler.queue, self.job.id, self.fence

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of log records about this run; dibs.telemetry.logs adds them to those of handlers."""
        job = self.job
        return {"queue": self.handler.queue, "id": job.id, "attempt": job.attempts, "fence": self.fence}

    def start_timeout(self, now: float | None = None) -> float | None:
        """Set the deadline by the timeout of the job, counted from `now`, and return it.

        `now` is by time.monotonic(); None for the current time.
        """
        timeout = self.limits.timeout
        if timeout is not None:
            self.deadline = (time.monotonic() if now is None else now) + timeout / 1000
        return self.deadline


async def call_async_handler(invocation: Invocation) -> Verdict:
    """Call an `async def` handler in the current task, and return the verdict.

    Raises only GeneratorExit, when the coroutine of the task is destroyed.
    """
    if invocation.forks != forks.count:
        forks.leave(invocation, SystemExit(1))  # another handler has forked this process
    _enter(invocation)
    handler = invocation.handler
    middleware = handler.middleware
    try:
        if middleware is None:
            arguments, keywords = handler.decode_arguments(invocation.job)
            value = await handler.function(*arguments, **keywords)
        else:
            value = None  # the result of a run whose exception the middleware suppresses
            with middleware(invocation.current), forks.ending_in_child(invocation):
                value = await _call_function(invocation)
    except GeneratorExit as error:
        if _is_destroyed(invocation):
            raise
        return _error_verdict(invocation, error)
    except BaseException as error:  # noqa: BLE001 - SystemExit in a handler ends the run, not the worker
        return _error_verdict(invocation, error)
    if invocation.forks != forks.count:
        forks.leave(invocation, None)
    return result_verdict(invocation, value)


def _enter(invocation: Invocation) -> None:
    CURRENT_JOB.set(invocation.current)
    if invocation.handler.log_level is not None:
        RUN_LOGS.attach()


def _is_destroyed(invocation: Invocation) -> bool:
    """Return whether the task of a run is destroyed; a handler may also raise GeneratorExit itself."""
    try:
        return asyncio.current_task() is not invocation.task
    except RuntimeError:  # no event loop runs in this thread
        return True


def call_sync_handler(invocation: Invocation, context: Context) -> Verdict:
    """Call a `def` handler on the current thread, in `context`, and return the verdict. Never raises."""
    return context.run(_call_in_context, invocation)


def _call_in_context(invocation: Invocation) -> Verdict:
    _enter(invocation)
    try:
        if invocation.handler.middleware is None:
            with forks.ending_in_child(invocation):
                value = _call_function(invocation)
        else:
            value = None  # the result of a run whose exception the middleware suppresses
            with invocation.handler.middleware(invocation.current), forks.ending_in_child(invocation):
                value = _call_function(invocation)
    except BaseException as error:  # noqa: BLE001 - SystemExit in a handler ends the run, not the thread
        return _error_verdict(invocation, error)
    return result_verdict(invocation, value)


def _error_verdict(invocation: Invocation, error: BaseException) -> Verdict:
    """Return the verdict on a handler that raised `error`, with its follow-ups for a failure."""
    if invocation.forks != forks.count:
        forks.leave(invocation, error)
    verdict = exception_info.verdict_of_handler(error)
    if isinstance(verdict, Raised) and not invocation.handler.retries(error):
        verdict = replace(verdict, unlisted=True)
    return _with_follow_ups(invocation, verdict)


def _with_follow_ups(invocation: Invocation, verdict: Verdict) -> Verdict:
    follow_ups = invocation.current.failure_follow_ups
    return replace(verdict, follow_ups=follow_ups) if follow_ups and isinstance(verdict, Raised) else verdict


def _call_function(invocation: Invocation) -> Any:
    arguments, keywords = invocation.handler.decode_arguments(invocation.job)
    return invocation.handler.function(*arguments, **keywords)


def result_verdict(invocation: Invocation, value: Any) -> Verdict:
    """Return the verdict on a handler that returned `value`.

    A value that cannot be encoded completes the run: its work is done, and a failure would call the failure
    handler, and might be retried by hand. A text about the value is then the result. It is a permanent
    failure under `strict_results`, in a flow, whose next node takes the result, and for a coroutine that was
    never awaited. The value of a handler that has called `hand_off` is ignored.
    """
    if invocation.current.handed_off:
        return HandedOff()
    invocation.return_value = value
    try:
        return Returned(encode_result(invocation.handler, value), invocation.current.follow_ups)
    except BaseException as error:  # noqa: BLE001 - the user's serde may raise anything
        if (described := _encode_description(invocation, value, error)) is not None:
            return Returned(described, invocation.current.follow_ups)
        message = _describe_unwritable(invocation.handler, value, error)
        unwritable = exception_info.make_error("ResultNotSerializable", message)
        return _with_follow_ups(invocation, Raised(error=unwritable, permanent=True))


def _encode_description(invocation: Invocation, value: Any, error: BaseException) -> bytes | None:
    """Return an encoded text about a result that cannot be encoded; None if the run must fail."""
    handler = invocation.handler
    in_flow = FLOW_ATTRIBUTE in invocation.job.data.attributes
    if handler.strict_results or in_flow or inspect.iscoroutine(value):
        return None
    reason = summarize_exception(error)
    try:
        encoded = handler.serde.encode(
            f"(a result that cannot be stored: {reason}) {value!r}"[:MAX_DESCRIPTION]
        )
    except BaseException:  # noqa: BLE001 - the repr and the serde may raise anything
        return None
    _warn_once(handler.queue, _type_name(value), reason)
    return encoded if isinstance(encoded, bytes) else None


@lru_cache(1000)
def _warn_once(queue: str, kind: str, reason: str) -> None:
    """Log a result that cannot be stored. The cache keeps a handler from filling the log with one line."""
    logger.warning(
        "%s returned %s, which its serde cannot write: %s. The job is completed, and its result is a text; "
        "return a value that can be stored, or declare strict_results=True to fail such runs",
        queue, kind, reason,
    )  # fmt: skip


def encode_result(handler: Handler, value: Any) -> bytes:
    """Return the result of a handler as bytes. Raises the errors of its serde, which are of any class."""
    if handler.dump_result is not None:
        value = handler.dump_result(value)
    encoded = handler.serde.encode(value)
    if not isinstance(encoded, bytes):
        raise TypeError(f"the serde {handler.serde.name!r} returned {_type_name(encoded)}, not bytes")
    return encoded


def _describe_unwritable(handler: Handler, value: Any, error: BaseException) -> str:
    """Return the message about a result that the serde of the handler cannot encode."""
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
        return (
            f"{handler.queue} returned a coroutine: was `await` forgotten? A handler that awaits must be an "
            "`async def`"
        )
    reason = summarize_exception(error)
    return f"{handler.queue} returned {_type_name(value)}, which its serde cannot write: {reason}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def timeout_verdict(invocation: Invocation, verdict: Verdict | None = None) -> Raised:
    """Return the verdict on a run that exceeded its timeout.

    The traceback and the follow-ups come from `verdict`, the verdict on the interrupted handler; the
    traceback shows where the handler was.
    """
    error = timeout_error(invocation.limits.timeout)
    if not isinstance(verdict, Raised):
        return Raised(error=error)
    return Raised(error=replace(error, traceback=verdict.error.traceback), follow_ups=verdict.follow_ups)


def interrupted_verdict() -> Raised:
    """Return the verdict on a run that was stopped before its handler began."""
    message = "the run was stopped before its handler began"
    return Raised(error=exception_info.make_error("Interrupted", message))


def timeout_error(timeout: int | None) -> Error:
    """Return the error of a run that took longer than `timeout` ms."""
    message = f"took longer than its timeout of {(timeout or 0) / 1000:g} s"
    return exception_info.make_error("TimeoutError", message)
