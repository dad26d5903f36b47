"""From the verdict on a run to its settlement: the settle action, the log line, the hook of the task
(@task.after), the next tick of a schedule, and a fallback.

A tick is a job of a schedule. The settlement of each tick enqueues the next tick.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, datetime
from typing import Any, Final

from attrs import define, field
from msgspec.structs import replace

from dibs.client.calls.handler import Ending, Handler
from dibs.model import run_outcome
from dibs.model import schedule as model
from dibs.model.job import EndKind, Error, JobData
from dibs.model.requests import Cancelled, Complete, End, Fail, HandOff, Release, RetryLater, SettleAction
from dibs.model.results import SettleResult
from dibs.model.retry import is_exhausted
from dibs.model.run_outcome import MISMATCH
from dibs.model.schedule import TICK_ID, UNREADABLE_PAUSE, Schedule, is_tick_id, read_schedule
from dibs.model.wakeup import EVALUATIONS, FLOW_ATTRIBUTE, with_wake_up
from dibs.worker.execution import forks
from dibs.worker.execution.exception_info import verdict_on_error
from dibs.worker.execution.invocation import Invocation, encode_result

logger = logging.getLogger("dibs.worker")

_CAUSE_LINE: Final = "\n\nThe exception above was the cause of the following exception:\n\n"


def log_action(invocation: Invocation, action: SettleAction) -> None:
    """Log a failure as ERROR, a retry as WARNING, a completion as DEBUG, all other actions as INFO.

    Never raises.
    """
    level = _level(action)
    if logger.isEnabledFor(level):
        _log(invocation, level, lambda: _describe_action(invocation, action))


def log_hook_error(invocation: Invocation, error: BaseException) -> None:
    """Log the error of a hook as ERROR. Never raises.

    The traceback is text, because logging passes on a SystemExit that a property of the error raises.
    """
    stored = verdict_on_error(error).error
    what = "the hook after the run failed; the run is settled without it"
    _log(invocation, logging.ERROR, lambda: f"{what}: {_summary(stored)}{_traceback(stored)}")


def _log(invocation: Invocation, level: int, describe: Callable[[], str]) -> None:
    """Log a line about a run. A filter of the application may raise an error, but the run must be settled."""
    with suppress(Exception):
        logger.log(level, "%s/%s: %s", *invocation.key[:2], describe(), extra=invocation.log_fields)


def _level(action: SettleAction) -> int:
    if isinstance(action, Fail):
        return logging.ERROR
    if isinstance(action, RetryLater):
        return logging.WARNING
    return logging.DEBUG if isinstance(action, Complete) else logging.INFO


def _describe_action(invocation: Invocation, action: SettleAction) -> str:
    if isinstance(action, Fail):
        return f"failed: {_summary(action.error)}{_traceback(action.error)}"
    if isinstance(action, RetryLater):
        number = _retry_number(invocation, action)
        return f"{_summary(action.error).rstrip('.')}; {number} {_next_time(invocation, action)}"
    if isinstance(action, Cancelled):
        return "cancelled" if action.error is None else f"cancelled: {action.error.message}"
    if isinstance(action, Release):
        if action.parked:
            return "waits for a signal"
        is_timed = action.delay is not None or action.run_at is not None
        return f"snoozed; next run {_next_time(invocation, action)}" if is_timed else "released"
    return "handed off" if isinstance(action, HandOff) else "completed"


def _next_time(invocation: Invocation, action: RetryLater | Release) -> str:
    """Return the time of the next run by an estimate of the storage's clock."""
    now = invocation.claimed_at + round((time.monotonic() - invocation.received_at) * 1000)
    run_at = now + (action.delay or 0) if action.run_at is None else action.run_at
    try:
        when = f"{datetime.fromtimestamp(run_at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        when = "after the year 9999"
    return f"in {max(0, run_at - now) / 1000:.15g} s, at {when}"


def _retry_number(invocation: Invocation, action: RetryLater) -> str:
    if action.error is not None and action.error.type == MISMATCH:
        return "next try"  # the message of the error has the number
    job, limits = invocation.job, invocation.limits
    number, most = {
        "error": (job.retries, limits.max_retries),
        "timeout": (job.timeouts, limits.max_timeouts),
        "stall": (job.stalls, limits.max_stalls),
    }[action.cause]
    if action.cause == "stall" and is_exhausted(number, most):
        return "it has stalled too often and fails at its next claim,"
    return f"retry {number + 1}" if most is None else f"retry {number + 1} of {most}"


def _summary(error: Error | None) -> str:
    if error is None:
        return "no error"
    return f"{error.type}: {error.message}" if error.message else error.type


def _traceback(error: Error) -> str:
    """Return the traceback and those of the causes, as Python prints them; "" without a traceback."""
    if not error.traceback and error.cause is None:
        return ""
    blocks = []
    part: Error | None = error
    while part is not None:
        blocks.append(f"Traceback (most recent call last):\n{part.traceback}{_summary(part)}")
        part = part.cause
    return "\n" + _CAUSE_LINE.join(reversed(blocks))


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


def may_be_tick(invocation: Invocation) -> bool:
    """Return whether the job may belong to a schedule. It is cheap, because each run asks."""
    has_schedule = bool(invocation.job.data.attributes) or invocation.handler.schedule is not None
    return has_schedule and is_tick_id(invocation.job.id)


def find_schedule(handler: Handler, id: str, data: JobData) -> Schedule | None:
    """Return the schedule of a job; None if it has none. Raise Refused if it cannot be read.

    The job carries it. A tick of a declared schedule that a user enqueued by hand has the schedule of the
    handler. A handler that declares no schedule ends that of an older release.
    """
    if not is_tick_id(id) or (id == TICK_ID and handler.schedule is None):
        return None
    return read_schedule(data) or (handler.schedule if id == TICK_ID else None)


def refuse_tick(invocation: Invocation) -> Release | Cancelled | None:
    """Return the action that settles a claimed tick without a run; None if it may run.

    A worker that cannot read the schedule releases the tick: without the next tick its run would be the last.
    """
    if not may_be_tick(invocation):
        return None
    try:
        return model.refuse_tick(invocation.job)
    except Exception:
        logger.exception(
            "%s/%s: the schedule of the job cannot be read; it waits for a worker that can, or for a change",
            *invocation.key[:2], extra=invocation.log_fields,
        )  # fmt: skip
        return Release(delay=UNREADABLE_PAUSE)


def with_next_tick(invocation: Invocation, action: SettleAction) -> SettleAction:
    """Return the action with the next tick added if the job belongs to a schedule. Never raises."""
    if not may_be_tick(invocation):
        return action
    try:
        return add_next_tick(
            invocation.handler,
            invocation.job.id,
            invocation.job.data,
            action,
            claimed_at=invocation.claimed_at,
            received_at=invocation.received_at,
        )
    except Exception:
        logger.exception(
            "%s/%s: the next tick could not be computed", *invocation.key[:2], extra=invocation.log_fields
        )
        return action


def add_next_tick(
    handler: Handler, id: str, data: JobData, action: SettleAction, *, claimed_at: int, received_at: float
) -> SettleAction:
    """Return the action with the next tick added, like `with_next_tick`. Raise Refused.

    `claimed_at` is in ms by the clock of the storage, `received_at` in seconds by time.monotonic().
    """
    schedule = find_schedule(handler, id, data)
    if schedule is None:
        return action
    # An estimate of the storage's clock: the time of the claim, plus the time since the claim arrived here.
    now = claimed_at + round((time.monotonic() - received_at) * 1000)
    return model.with_next_tick(schedule, handler.queue, id, action, claimed_at=claimed_at, now=now)


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
        # A retry of a tick comes at the next tick at the latest, so the log tells the time of this action.
        action = with_next_tick(invocation, action)
        if not is_routine or logger.isEnabledFor(logging.DEBUG):
            log_action(invocation, action)
        if FLOW_ATTRIBUTE in invocation.job.data.attributes and self._is_cross_queue:
            action = with_wake_up(action, invocation.job.id, invocation.job.data.attributes)
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
            return True
        ended = with_next_tick(invocation, action)
        if isinstance(ended, Cancelled) or calls_hook_after_stalls(invocation):
            self.settle_with_hook(invocation, ended)
        else:
            self._settle(invocation, ended)
        return True

    def settle_with_hook(self, invocation: Invocation, action: SettleAction) -> None:
        """Settle a run with an action, which the hook of its task may change if it ends the job."""
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
