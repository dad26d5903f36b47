"""When a run that went wrong is tried again, and when it has been tried enough. Delays are ms."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RetryCause = Literal["error", "timeout", "stall"]


class Immediate(Struct, frozen=True, gc=False, tag="immediate"):
    """Again at once."""

    def delay(self, comeback: int, luck: float = 1.0) -> int:
        """Return 0."""
        return 0


class Fixed(Struct, frozen=True, gc=False, tag="fixed"):
    """Again after the same `seconds` every time."""

    seconds: float

    def delay(self, comeback: int, luck: float = 1.0) -> int:
        """Return the same delay for every comeback, in ms."""
        return round(self.seconds * 1000)


class Exponential(Struct, frozen=True, gc=False, tag="exponential"):
    """Again after `first` seconds, then twice as long each time, never longer than `cap`.

    With `jitter` the delay is drawn evenly between 0 and that value ("full jitter", Brooker 2015),
    so that a crowd which failed together does not come back together.
    """

    first: float = 2.0
    cap: float = 300.0
    jitter: bool = False

    def delay(self, comeback: int, luck: float = 1.0) -> int:
        """Return the ms before comeback number `comeback` (from 1); `luck` in [0, 1) is the draw."""
        # Beyond 2**62 the cap has long been reached, and a float power would overflow at 2**1024.
        seconds = min(self.cap, self.first * 2.0 ** min(comeback - 1, 62))
        return round(seconds * (luck if self.jitter else 1.0) * 1000)


Backoff = Immediate | Fixed | Exponential


def is_exhausted(comebacks: int, limit: int | None) -> bool:
    """Tell whether a job that came back `comebacks` times may not come back again.

    A limit n allows n comebacks, so n + 1 runs; None is no limit.
    """
    return limit is not None and comebacks >= limit
