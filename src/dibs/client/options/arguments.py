"""Checks and conversions of single arguments: durations and times, lists, errors, job keys and ids.

Durations and datetimes become whole milliseconds, the unit of every storage. `new_id` generates ids that
sort by time, and `content_id` derives an id from data.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from dibs.client.options.value_hooks import enc_hook
from dibs.errors import Refused
from dibs.model.check_values import check_text
from dibs.model.duration_text import parse_seconds
from dibs.model.limits import LATEST_TIME, LIMITS, LONGEST_TIME
from dibs.model.plain_values import to_plain_text

#: A duration: seconds as a number, a timedelta, or text of numbers with the units ms, s, m, h, d and w, such
#: as "5m" or "1h30m".
Seconds = int | float | str | timedelta

#: Seconds that the lease of a worker lasts from its last heartbeat, if nothing else is set.
DEFAULT_LEASE: Final = 15.0
#: Seconds that running jobs have to end after a stop, if nothing else is set.
DEFAULT_GRACE: Final = 30.0
#: Seconds between two claims on an empty queue, if nothing else is set.
DEFAULT_POLL: Final = 1.0
#: Seconds for which the outcomes of the nodes of a flow are kept at least, if nothing else is set: 7 days.
DEFAULT_KEEP: Final = 7 * 86_400.0
#: Seconds without a new member after which an open batch is closed, if nothing else is set.
DEFAULT_OPEN_FOR: Final = 3600.0

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


def check_list(field: str, items: Any) -> None:
    """Raise Refused for a str and for a value without items. A str would count as one item per letter."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise Refused(f"{field} is {items!r:.80}; pass a list", field=field)


def check_error(error: object) -> None:
    """Raise Refused unless `error` is an exception object. An exception class and a text are refused, too."""
    if not isinstance(error, BaseException):
        raise Refused(f"error is {error!r:.80}; pass an exception, as in ValueError('...')", field="error")


def wait_ms(wait: Seconds) -> int:
    """Return a wait in ms. Raises Refused unless it is 0 or more."""
    ms = duration_ms("wait", wait)
    if ms < 0:
        raise Refused(f"wait is {wait}; it must be 0 or more seconds, or None for no limit", field="wait")
    return ms


#: Bits of a number with about 300 digits. Python raises ValueError when it prints one of thousands of digits.
_MOST_BITS: Final = 1000


def build_key(value: Any) -> str | None:
    """Return a key as text: text unchanged, a whole number in decimal digits, None for no key.

    Raises Refused with the field `key` for another type, and unless the text has 1 to 128 bytes.
    """
    if value is None:
        return None
    text = to_plain_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(int(value)) if value.bit_length() <= _MOST_BITS else "9" * _MOST_BITS
    if not isinstance(text, str):
        raise Refused(
            f"key is {value!r:.60} of type {type(value).__name__}; pass a text of 1 to 128 bytes, a whole "
            "number, or None for no key",
            field="key",
        )
    check_text("key", text, LIMITS.key)
    return text


#: The digits of Crockford's base 32. Encoded text sorts in the order of the encoded numbers.
BASE32_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Two digits for each number from 0 to 1023.
_DIGIT_PAIRS: Final = [first + second for first in BASE32_DIGITS for second in BASE32_DIGITS]
#: Most ids with the same timestamp. The generator gives further ids the timestamp of the next ms.
MAX_IDS_PER_MS: Final = len(_DIGIT_PAIRS)


class _Millisecond(NamedTuple):
    """The parts that all ids of one millisecond share, and the counter that distinguishes them."""

    #: Ms since the epoch.
    at: int
    #: Counts the ids of this ms from 0.
    numbers: count[int]
    #: The encoded timestamp, 10 digits.
    head: str
    #: The encoded random bits, 14 digits.
    tail: str


class IdGenerator:
    """A generator of ULIDs that increase within a process: 48 bits of ms, 10 of a counter, 70 random.

    A ULID has 26 characters, a UUID 36, and a storage keeps each id in several indexes and in each event.
    The random bits are drawn once per ms, because drawing them for each id took longer than the rest of
    `next`. The counter separates the ids of a process. Two processes draw the same random bits in the same
    ms with a probability of 1 in 2**70.
    """

    def __init__(self) -> None:
        self._reset(0)
        if hasattr(os, "register_at_fork"):
            # A forked child inherits the random state and the counter, and would generate its parent's ids.
            os.register_at_fork(after_in_child=lambda: self._reset(self._current.at + 1))

    def _reset(self, at: int) -> None:
        self._lock = threading.Lock()
        # Seeded by the operating system once; os.urandom for each ms costs more.
        self._random = random.Random()  # noqa: S311 - an id has to be unique, not secret
        self._current = self._start_millisecond(at)

    def next(self) -> str:
        """Return a new id, greater than every id returned before. Safe to call from any thread."""
        now = time.time_ns() // 1_000_000
        while True:
            at, numbers, head, tail = self._current
            # No lock is needed here: the interpreter runs `next` of a count as one step.
            if now <= at and (number := next(numbers)) < MAX_IDS_PER_MS:
                return f"{head}{_DIGIT_PAIRS[number]}{tail}"
            with self._lock:
                if self._current.at == at:
                    self._current = self._start_millisecond(max(now, at + 1))

    def _start_millisecond(self, at: int) -> _Millisecond:
        return _Millisecond(
            at, count(), _encode_base32(at, 5), _encode_base32(self._random.getrandbits(70), 7)
        )


def _encode_base32(number: int, pairs: int) -> str:
    """Return `number` in base 32 with `2 * pairs` digits: (33, 1) gives "11"."""
    return "".join([_DIGIT_PAIRS[number >> 10 * index & 1023] for index in reversed(range(pairs))])


new_id: Callable[[], str] = IdGenerator().next


def content_id(data: Any) -> str:
    """Return an id of 32 hex digits that is equal for equal data; the order of keys makes no difference.

    Pass it as `id=` to enqueue equal work once while it is pending. Raises TypeError if `data` cannot be
    encoded as JSON.
    """
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, which only this function needs

    raw = msgspec.json.encode(data, enc_hook=enc_hook, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
