"""Conversion of durations and datetimes to whole milliseconds, the unit of every storage, and back."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from dibs.errors import Refused
from dibs.model.duration_text import parse_seconds
from dibs.model.limits import LATEST_TIME, LONGEST_TIME

#: A duration: seconds as a number, a timedelta, or text of numbers with the units ms, s, m, h, d and w, such
#: as "5m" or "1h30m".
Seconds = int | float | str | timedelta

#: Seconds that the lease of a worker lasts from its last heartbeat, if nothing else is set.
DEFAULT_LEASE: Final = 15.0

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
LONGEST_SECONDS = LONGEST_TIME // 1000


def duration_ms(field: str, duration: Seconds) -> int:
    """Return `duration` in ms, rounded up so that no job runs early: 1.5 gives 1500, 0.0001 gives 1.

    Raises Refused, with `field` as its field, if `duration` is not a finite number, a timedelta or text such
    as "5m", or has more than 100,000 days.
    """
    if isinstance(duration, str):
        duration = text_seconds(field, duration)
    if isinstance(duration, timedelta):
        whole, rest = divmod(duration, MILLISECOND)
        _check_length(field, whole / 1000)
        return whole + bool(rest)
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise Refused(
            f'{field} is {duration!r}; pass seconds as a number, text such as "5m", or a timedelta',
            field=field,
        )
    if isinstance(duration, float) and not math.isfinite(duration):
        raise Refused(f"{field} is {duration}; pass a finite number of seconds", field=field)
    # An int of hundreds of digits has no float, so check it before any arithmetic.
    _check_length(field, duration)
    # 2.007 * 1000 is 2007.0000000000002 in floats; ceil without round would return 2008.
    return math.ceil(round(duration * 1000, 6))


def text_seconds(field: str, text: str) -> float:
    """Return the seconds of a text such as "5m" or "1h30m". Raises Refused for any other text."""
    try:
        return parse_seconds(field, text)
    except ValueError as error:
        raise Refused(str(error), field=field) from None


def duration_seconds(field: str, duration: Seconds) -> float:
    """Return `duration` in seconds. Raises the errors of `duration_ms`; a number is returned unchanged."""
    duration_ms(field, duration)
    if isinstance(duration, str):
        return text_seconds(field, duration)
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _check_length(field: str, seconds: float) -> None:
    if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise Refused(
            f"{field} is too long; the longest duration is 100,000 days ({LONGEST_SECONDS} seconds)",
            field=field,
        )


def epoch_ms(field: str, moment: datetime) -> int:
    """Return `moment` as ms since the Unix epoch, rounded up.

    Raises Refused if it has no time zone, or is after the end of the year 9998.
    """
    if not isinstance(moment, datetime):
        raise Refused(f"{field} is a {type(moment).__name__}; pass a datetime with a time zone", field=field)
    if moment.tzinfo is None:
        raise Refused(
            f"{field} is {moment}, which has no time zone; pass one, as in datetime(..., tzinfo=UTC)",
            field=field,
        )
    ms = -(-(moment - EPOCH) // MILLISECOND)
    if ms > LATEST_TIME:
        raise Refused(f"{field} is {moment}; the latest time is the end of the year 9998 in UTC", field=field)
    return ms


def utc_datetime(ms: int) -> datetime:
    """Return `ms` since the epoch as a datetime in UTC."""
    return EPOCH + ms * MILLISECOND


def utc_datetime_or_none(ms: int | None) -> datetime | None:
    """Return `ms` since the epoch as a datetime in UTC, or None if `ms` is None."""
    return None if ms is None else utc_datetime(ms)
