"""The oracle's record of starts, from which it replays the clocks of rates."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from dibs.model.requests import Settings, StartRate


@define
class Starts:
    """The times of the starts in one queue since its rates were set, in ms since the epoch."""

    #: The starts since `rate` was set.
    of_queue: list[int] = field(factory=list)
    #: By key: the starts since `key_rate` was set.
    by_key: dict[str, list[int]] = field(factory=dict)

    def add(self, key: str | None, now: int) -> None:
        self.of_queue.append(now)
        if key is not None:
            self.by_key.setdefault(key, []).append(now)

    def begin_changed_rates(self, before: Settings, after: Settings) -> None:
        """Forget the starts under each rate that a `configure` changed."""
        if after.rate != before.rate:
            self.of_queue = []
        if after.key_rate != before.key_rate:
            self.by_key = {}

    def copy(self) -> Starts:
        return Starts(list(self.of_queue), {key: list(times) for key, times in self.by_key.items()})


def interval(rate: StartRate) -> int:
    """Return the time between two starts in µs, rounded up."""
    whole, rest = divmod(rate.per * 1000, rate.starts)
    return whole + (rest > 0)


def first_start(rate: StartRate | None, starts: Sequence[int]) -> int:
    """Return the first ms at which a rate allows a start after the `starts`; 0 without a rate."""
    if rate is None:
        return 0
    clock = 0
    for start in starts:
        clock = max(clock, start * 1000) + interval(rate)
    allowed = max(0, clock - (rate.burst - 1) * interval(rate))
    whole, rest = divmod(allowed, 1000)
    return whole + (rest > 0)
