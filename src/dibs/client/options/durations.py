"""Conversion of durations and datetimes to whole milliseconds, the unit of every storage, and back."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from dibs.errors import Refused

#: A duration: seconds as a number, or a timedelta.
Seconds = int | float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def duration_ms(field: str, duration: Seconds) -> int:
    """Return `duration` in ms, rounded up so that no job runs early: 1.5 gives 1500, 0.0001 gives 1.

    Raises Refused, with `field` as its field, if `duration` is not a finite number or a timedelta.
    """
    if isinstance(duration, timedelta):
        return -(-duration // MILLISECOND)
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise Refused(f"{field} is {duration!r}; pass seconds as a number, or a timedelta", field=field)
    if not math.isfinite(duration):
        raise Refused(f"{field} is {duration}; pass a finite number of seconds", field=field)
    # 2.007 * 1000 is 2007.0000000000002 in floats; ceil without round would return 2008.
    return math.ceil(round(duration * 1000, 6))


def epoch_ms(field: str, moment: datetime) -> int:
    """Return `moment` as ms since the Unix epoch, rounded up. Raises Refused if it has no time zone."""
    if not isinstance(moment, datetime):
        raise Refused(f"{field} is a {type(moment).__name__}; pass a datetime with a time zone", field=field)
    if moment.tzinfo is None:
        raise Refused(
            f"{field} is {moment}, which has no time zone; pass one, as in datetime(..., tzinfo=UTC)",
            field=field,
        )
    return -(-(moment - EPOCH) // MILLISECOND)


def utc_datetime(ms: int) -> datetime:
    """Return `ms` since the epoch as a datetime in UTC."""
    return EPOCH + ms * MILLISECOND


def utc_datetime_or_none(ms: int | None) -> datetime | None:
    """Return `ms` since the epoch as a datetime in UTC, or None if `ms` is None."""
    return None if ms is None else utc_datetime(ms)
