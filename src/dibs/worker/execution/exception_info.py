"""The conversion of an exception to data: the error to store, and the retry or pause that it asks for."""

from __future__ import annotations

import math
import traceback
from datetime import datetime, timedelta
from typing import Any, Final

from dibs.client.calls.failure import error_from_exception
from dibs.client.calls.signals import ParkRun
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.errors import PermanentError, Retry, Snooze
from dibs.model import run_outcome
from dibs.model.error_text import to_storable_error
from dibs.model.job import Error
from dibs.model.limits import LATEST_TIME, LONGEST_TIME
from dibs.model.run_outcome import Raised, Snoozed


def verdict_of_handler(error: BaseException) -> Raised | Snoozed:
    """Return the verdict on a handler that raised `error`.

    It is Snoozed for Snooze and for a wait for a signal, else that of `verdict_on_error`.
    """
    if isinstance(error, ParkRun):
        return Snoozed(run_at=error.until, parked=True)
    if isinstance(error, Snooze):
        return Snoozed(delay=_delay_ms(error.delay), run_at=_epoch_ms(error.until))
    return verdict_on_error(error)


def verdict_on_error(error: BaseException) -> Raised:
    """Return the verdict on a handler that raised `error`.

    An exception of any class can choose its outcome by an attribute: `kind` = "permanent" fails the job
    without a retry, `retry_at` is the time of the next attempt (a datetime, or seconds since the epoch).
    Never raises: an attribute that raises when it is read is ignored.
    """
    try:
        return _describe_safely(error)
    except MemoryError:
        # The frames of the traceback keep the objects that fill the memory: clear them and try again.
        traceback.clear_frames(error.__traceback__)
    try:
        return _describe_safely(error)
    except MemoryError:
        return OUT_OF_MEMORY


def _describe_safely(error: BaseException) -> Raised:
    try:
        return _verdict_on_error(error)
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - an attribute of the user's exception raises when it is compared
        return Raised(error=error_from_exception(error))


def _verdict_on_error(error: BaseException) -> Raised:
    if isinstance(error, PayloadMismatch):
        return Raised(error=make_error(run_outcome.MISMATCH, str(error)), mismatch=True)
    stored = error_from_exception(error)
    if isinstance(error, PermanentError) or _read_attribute(error, "kind") == "permanent":
        return Raised(error=stored, permanent=True)
    if isinstance(error, Retry):
        return Raised(error=stored, delay=_delay_ms(error.delay), run_at=_epoch_ms(error.at))
    return Raised(error=stored, run_at=_epoch_ms(_read_attribute(error, "retry_at")))


def make_error(type_: str, message: str) -> Error:
    """Return the storable form of an error that dibs itself reports, such as "ProcessDied"."""
    return to_storable_error(Error(type=type_, message=message))


#: The verdict if even the description of a MemoryError fails. It is created at import, because there is no
#: memory for it later.
OUT_OF_MEMORY: Final = Raised(error=make_error("MemoryError", "no memory was left to describe the error"))


def _read_attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001 - a property of the user's exception may raise anything
        return None


def _delay_ms(delay: float | timedelta | None) -> int | None:
    if delay is None:
        return None
    return _clamped_ms(delay.total_seconds() if isinstance(delay, timedelta) else delay, LONGEST_TIME)


def _epoch_ms(at: Any) -> int | None:
    """Return an aware datetime, or seconds since the epoch, in ms since the epoch; None for other values."""
    if isinstance(at, datetime):
        return _clamped_ms(_timestamp(at), LATEST_TIME)
    return _clamped_ms(at, LATEST_TIME)


def _timestamp(at: datetime) -> float | None:
    """Return the seconds since the epoch; None without a time zone, or if its class raises an error."""
    try:
        return at.timestamp() if at.tzinfo is not None else None
    except Exception:  # noqa: BLE001 - the time zone may be the user's class
        return None


def _clamped_ms(seconds: Any, most: int) -> int | None:
    """Return seconds as ms from 0 to `most`; None if `seconds` is not a finite number."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return None
    # An int may be too large for the conversion to a float, by which math.isfinite checks it.
    if isinstance(seconds, float) and not math.isfinite(seconds):
        return None
    return max(0, min(most, round(seconds * 1000)))
