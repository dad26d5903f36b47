"""What is refused in the terms of a job: its overrides, its backoff, how long its outcome is kept."""

from __future__ import annotations

import math
from typing import Final, get_args

from msgspec import UNSET

from dibs.errors import Refused
from dibs.model.job import EndKind, OutcomeRetention, Overrides
from dibs.model.retry import Exponential, Fixed, Immediate

#: Beyond 2**53 a float, and so Lua and JavaScript, no longer tells neighbours apart.
SAFE_INTEGER: Final = 2**53
#: The longest time in ms, so that now plus it is still a safe integer.
LONGEST: Final = SAFE_INTEGER // 2
_END_KINDS: Final = get_args(EndKind)


def check_whole(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within low..high."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{field} must be a whole number, not {type(value).__name__}", field=field)
    if not low <= value <= high:
        # Python refuses to write out thousands of digits.
        shown = value if abs(value) < 2**64 else "far too large"
        raise Refused(f"{field} is {shown}; it must be {low} to {high}", field=field)


def check_overrides(overrides: Overrides) -> None:
    """Refuse limits of a job's own that no handler could have."""
    if not isinstance(overrides, Overrides):
        raise Refused(f"overrides must be Overrides, not {type(overrides).__name__}", field="overrides")
    _check_times("overrides.timeout", overrides.timeout, 1)
    _check_times("overrides.max_retries", overrides.max_retries, 0)
    _check_times("overrides.max_timeouts", overrides.max_timeouts, 0)
    _check_times("overrides.max_stalls", overrides.max_stalls, 0)
    if overrides.lease is not UNSET:
        check_whole("overrides.lease", overrides.lease, 1, LONGEST)
    if overrides.backoff is not UNSET:
        check_backoff("overrides.backoff", overrides.backoff)


def check_backoff(field: str, backoff: object) -> None:
    """Refuse what says no delay, or one that is no time."""
    if isinstance(backoff, Immediate):
        return
    if isinstance(backoff, Fixed):
        _check_seconds(f"{field}.seconds", backoff.seconds)
    elif isinstance(backoff, Exponential):
        _check_seconds(f"{field}.first", backoff.first)
        _check_seconds(f"{field}.cap", backoff.cap)
    else:
        raise Refused(
            f"{field} must be Immediate, Fixed or Exponential, not {type(backoff).__name__}", field=field
        )


def check_retention(field: str, retention: OutcomeRetention) -> None:
    """Refuse a retention that is no time: whole ms, 0 for none, None for ever."""
    if not isinstance(retention, OutcomeRetention):
        raise Refused(f"{field} must be a Retention, not {type(retention).__name__}", field=field)
    for kind in _END_KINDS:
        _check_times(f"{field}.{kind}", getattr(retention, kind), 0)
    kept: object = retention.keep_payload
    if kept is not UNSET and not (isinstance(kept, tuple) and set(kept) <= set(_END_KINDS)):
        where = f"{field}.keep_payload"
        raise Refused(f"{where} must be a tuple of some of {', '.join(_END_KINDS)}", field=where)


def _check_times(field: str, value: object, low: int) -> None:
    if value is not UNSET and value is not None:
        check_whole(field, value, low, LONGEST)


def _check_seconds(field: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    most = LONGEST // 1000
    if not math.isfinite(value) or not 0 <= value <= most:
        raise Refused(f"{field} must be 0 to {most} seconds", field=field)
