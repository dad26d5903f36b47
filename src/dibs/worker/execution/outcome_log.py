"""The log lines about the end of a run: failures with their traceback, and retries with their time."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Final

from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, RetryLater, SettleAction
from dibs.model.run_outcome import MISMATCH
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")

_CAUSE_LINE: Final = "\n\nThe exception above was the cause of the following exception:\n\n"


def log_action(invocation: Invocation, action: SettleAction) -> None:
    """Log a failure as ERROR, a retry as WARNING, a release or cancellation as INFO, the rest as DEBUG.

    Never raises: a filter of the application may raise an error, but the run must be settled.
    """
    level = _level(action)
    try:
        if logger.isEnabledFor(level):
            logger.log(
                level, "%s/%s: %s", *invocation.key[:2], _describe_action(invocation, action),
                extra=invocation.log_fields,
            )  # fmt: skip
    except Exception:  # noqa: BLE001, S110 - there is no way to log that logging fails
        pass


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
        return f"{_summary(action.error).rstrip('.')}; {_next_run(invocation, action)}"
    return {"Complete": "completed", "Cancelled": "cancelled", "Release": "released"}[type(action).__name__]


def _next_run(invocation: Invocation, action: RetryLater) -> str:
    """Return the number of a retry, and its time by an estimate of the storage's clock."""
    now = invocation.claimed_at + round((time.monotonic() - invocation.received_at) * 1000)
    run_at = now + (action.delay or 0) if action.run_at is None else action.run_at
    try:
        when = f"{datetime.fromtimestamp(run_at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        when = "after the year 9999"
    return f"{_retry_number(invocation, action)} in {max(0, run_at - now) / 1000:.15g} s, at {when}"


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
