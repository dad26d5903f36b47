"""The log lines about the end of a run: failures, retries with their time, errors of hooks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, Fail, HandOff, Release, RetryLater, SettleAction
from dibs.model.run_outcome import MISMATCH
from dibs.worker.execution.exception_info import verdict_on_error
from dibs.worker.execution.invocation import Invocation

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
