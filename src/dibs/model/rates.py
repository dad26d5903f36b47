"""The arithmetic of rates (contract 2, Rates): one clock for each queue and each key decides about a start.

A clock is a time in us since the epoch. Each start moves the clock forward by the interval of the rate. A
start is allowed while the clock is at most `burst` - 1 intervals ahead of now. So a clock needs no timer: it
is compared with now when a claim asks. A clock that is not later than now has no effect.

A run may have been worth more or less than one start. Its settlement then moves the clock by the difference.
"""

from __future__ import annotations

from typing import Final

from dibs.model.limits import DAY, START_COST
from dibs.model.requests import StartRate

#: The furthest that a clock may be ahead of now, in us: 366 days. The limit of burst * interval is the same.
FURTHEST: Final = 366 * DAY * 1000


def interval(rate: StartRate) -> int:
    """Return the time between two starts at the full rate, in us, rounded up."""
    return -(-rate.per * 1000 // rate.starts)


def allows_start(clock: int, rate: StartRate, now: int) -> bool:
    """Return whether a run may start at `now`, in ms since the epoch."""
    return clock <= now * 1000 + (rate.burst - 1) * interval(rate)


def charge_start(clock: int, rate: StartRate, now: int) -> int:
    """Return the clock after a start at `now`, in ms since the epoch."""
    return max(clock, now * 1000) + interval(rate)


def charge_cost(clock: int, rate: StartRate, cost: int, now: int) -> int:
    """Return the clock after the settlement, at `now`, of a run with a cost in thousandths of a start.

    Its start has charged 1,000 of them. A clock that is not later than now has nothing to give back.
    """
    moved = -((START_COST - cost) * interval(rate) // 1000)
    if moved > 0:
        return min(max(clock, now * 1000) + moved, now * 1000 + FURTHEST)
    return clock + moved if clock > now * 1000 else clock


def next_start(clock: int, rate: StartRate) -> int:
    """Return the earliest time at which the clock allows a start, in ms since the epoch."""
    return max(0, -(-(clock - (rate.burst - 1) * interval(rate)) // 1000))
