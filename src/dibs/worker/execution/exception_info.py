"""An exception as data: its text for whoever looks, and what it says about trying again."""

from __future__ import annotations

import math
import traceback
from datetime import datetime, timedelta
from typing import Any, Final

from dibs.client.calls.error_info import error_of
from dibs.errors import PermanentError, Retry
from dibs.model.error_text import checked_error
from dibs.model.job import Error
from dibs.model.limits import LONGEST, SAFE_INTEGER
from dibs.model.run_outcome import Raised


def raised(error: BaseException) -> Raised:
    """Return what a handler raised. Attributes `kind` and `retry_at` count on any exception."""
    try:
        return _raised(error)
    except MemoryError:
        # What filled the memory hangs on the frames of its traceback: without it there is room to tell.
        traceback.clear_frames(error.__traceback__)
    try:
        return _raised(error)
    except MemoryError:
        return NO_ROOM


def _raised(error: BaseException) -> Raised:
    told = error_of(error)
    if isinstance(error, PermanentError) or _asked(error, "kind") == "permanent":
        return Raised(error=told, permanent=True)
    if isinstance(error, Retry):
        return Raised(error=told, delay=_delay(error.delay), run_at=_moment(error.at))
    return Raised(error=told, run_at=_moment(_asked(error, "retry_at")))


def plain(type_: str, message: str) -> Error:
    """Return an error of ours that was never an exception."""
    return checked_error(Error(type=type_, message=message))


#: Made before there is need of it: what is told of an error when there is no memory to tell more.
NO_ROOM: Final = Raised(error=plain("MemoryError", "no memory was left to tell more"))


def _asked(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's may raise anything
        return None


def _delay(delay: float | timedelta | None) -> int | None:
    if delay is None:
        return None
    return _within(delay.total_seconds() if isinstance(delay, timedelta) else delay, LONGEST)


def _moment(at: Any) -> int | None:
    """Return a datetime with a zone, or seconds since the epoch, in ms; what is neither says nothing."""
    if isinstance(at, datetime):
        return _within(at.timestamp(), SAFE_INTEGER) if at.tzinfo is not None else None
    return _within(at, SAFE_INTEGER)


def _within(seconds: Any, most: int) -> int | None:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not math.isfinite(seconds):
        return None
    return max(0, min(most, round(seconds * 1000)))
