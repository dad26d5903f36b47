"""Times as people write them, and as the contract keeps them: whole ms, UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from dibs.errors import Refused

#: Seconds.
Seconds = int | float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def duration_ms(field: str, length: Seconds) -> int:
    """Return seconds as ms, rounded up: nobody runs early. Raises Refused."""
    if isinstance(length, timedelta):
        return -(-length // MILLISECOND)
    if isinstance(length, bool) or not isinstance(length, (int, float)):
        raise Refused(f"{field} must be seconds (a number or a timedelta), not {length!r}", field=field)
    if not math.isfinite(length):
        raise Refused(f"{field} is {length}; it must be a finite number of seconds", field=field)
    # 0.1 * 1000 is a hair above 100 in floats, and must not become 101.
    return math.ceil(round(length * 1000, 6))


def epoch_ms(field: str, moment: datetime) -> int:
    """Return a moment as ms since the epoch, rounded up. Raises Refused for one without a zone."""
    if not isinstance(moment, datetime):
        raise Refused(f"{field} must be a datetime, not {type(moment).__name__}", field=field)
    if moment.tzinfo is None:
        raise Refused(
            f"{field} needs a time zone, as in datetime(..., tzinfo=UTC): which noon is {moment}?",
            field=field,
        )
    return -(-(moment - EPOCH) // MILLISECOND)


def utc_datetime(ms: int) -> datetime:
    """Return ms since the epoch as a datetime in UTC."""
    return EPOCH + ms * MILLISECOND


def utc_datetime_or_none(ms: int | None) -> datetime | None:
    """Return the same, and None for none."""
    return None if ms is None else utc_datetime(ms)
