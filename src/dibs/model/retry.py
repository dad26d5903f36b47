"""Backoffs, which compute the delay before each retry of a job; their check, and that of a retry limit."""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from dibs.errors import Refused
from dibs.model.check_values import check_flag
from dibs.model.duration_text import parse_seconds
from dibs.model.limits import DAY, LONGEST_TIME

RetryCause = Literal["error", "timeout", "stall"]


class Immediate(Struct, frozen=True, gc=False, tag="immediate"):
    """A backoff that makes the job due again at once."""

    def delay(self, retry: int, jitter_factor: float = 1.0) -> int:
        """Return 0. The arguments are those of `Exponential.delay` and have no effect."""
        return 0


class Fixed(Struct, frozen=True, gc=False, tag="fixed"):
    """A backoff with the same delay of `seconds` before every retry."""

    seconds: float | str
    """The delay in seconds, or as text such as "5m", which becomes seconds."""

    def __post_init__(self) -> None:
        _read_text(self, "seconds")

    def delay(self, retry: int, jitter_factor: float = 1.0) -> int:
        """Return the delay in ms. The arguments are those of `Exponential.delay` and have no effect."""
        return round(cast("float", self.seconds) * 1000)


class Exponential(Struct, frozen=True, gc=False, tag="exponential"):
    """A backoff of `first` seconds that doubles with every retry, up to `cap` seconds.

    `Exponential(first=2, cap=10)` waits 2, 4, 8, 10, 10, ... seconds. With `jitter` the delay is a random
    part of that value ("full jitter", Brooker 2015), so that jobs which failed together return at different
    times.
    """

    first: float | str = 2.0
    """The delay before the first retry, in seconds, or as text such as "10s"."""
    cap: float | str = 300.0
    """The longest delay, in seconds, or as text such as "5m"."""
    jitter: bool = False
    """True to draw each delay at random between 0 and its value."""

    def __post_init__(self) -> None:
        _read_text(self, "first", "cap")

    def delay(self, retry: int, jitter_factor: float = 1.0) -> int:
        """Return the delay in ms before a retry.

        `retry` is 1 for the first retry. With `jitter` the delay is multiplied by `jitter_factor`, a random
        number in [0, 1).
        """
        # The exponent is limited to 62: the cap was reached long before, and a float overflows at 2**1024.
        first, cap = cast("float", self.first), cast("float", self.cap)
        seconds = min(cap, first * 2.0 ** min(retry - 1, 62))
        return round(seconds * (jitter_factor if self.jitter else 1.0) * 1000)


def _read_text(backoff: Struct, *names: str) -> None:
    """Replace each field that is text by its seconds. Raises Refused naming the field."""
    for name in names:
        value = getattr(backoff, name)
        if isinstance(value, str):
            try:
                force_setattr(backoff, name, parse_seconds(name, value))
            except ValueError as error:
                raise Refused(str(error), field=name) from None


Backoff = Immediate | Fixed | Exponential


def check_backoff(field: str, backoff: object) -> None:
    """Raise Refused unless `backoff` is an Immediate, Fixed or Exponential. Its seconds are 0 or more."""
    if isinstance(backoff, Immediate):
        return
    if isinstance(backoff, Fixed):
        _check_seconds(f"{field}.seconds", backoff.seconds)
    elif isinstance(backoff, Exponential):
        _check_seconds(f"{field}.first", backoff.first)
        _check_seconds(f"{field}.cap", backoff.cap)
        check_flag(f"{field}.jitter", backoff.jitter)
    else:
        raise Refused(
            f"{field} must be Immediate(), Fixed(seconds) or Exponential(first, cap), "
            f"not {type(backoff).__name__}",
            field=field,
        )


def _check_seconds(field: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    most = LONGEST_TIME // 1000
    if not 0 <= value <= most:  # also for NaN
        raise Refused(f"{field} must be 0 to {most} seconds ({LONGEST_TIME // DAY:,} days)", field=field)


def is_exhausted(retries: int, limit: int | None) -> bool:
    """Return whether a job that was retried `retries` times may not be retried again.

    A limit of n allows n retries, so n + 1 runs; None is no limit.
    """
    return limit is not None and retries >= limit
