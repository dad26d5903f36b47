"""The numbers at the end, from what the outcomes say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from dibs.model.job import Outcome


class Spread(Struct, frozen=True):
    """Two percentiles, ms."""

    p50: int
    p95: int


class Figures(Struct, frozen=True, kw_only=True):
    """How the jobs of one run of the demo went."""

    jobs: int
    seconds: float
    jobs_per_second: float
    #: From when a job was due to when it was claimed.
    wait_ms: Spread
    #: From its claim to its end.
    run_ms: Spread
    retries: int
    stalls: int
    timeouts: int


def figures(outcomes: Iterable[Outcome], seconds: float, since: int = 0) -> Figures:
    """Sum up the outcomes of the jobs that ended in this run, which began at `since`.

    What an interrupted run left behind has waited since then: the time in between was nobody's fault.
    """
    ended = list(outcomes)
    claimed = [outcome for outcome in ended if outcome.claimed_at is not None]
    return Figures(
        jobs=len(ended),
        seconds=round(seconds, 3),
        jobs_per_second=round(len(ended) / seconds, 1) if seconds > 0 else 0.0,
        wait_ms=spread([max(0, (o.claimed_at or 0) - max(o.run_at, since)) for o in claimed]),
        run_ms=spread([max(0, o.ended_at - (o.claimed_at or 0)) for o in claimed]),
        retries=sum(outcome.retries for outcome in ended),
        stalls=sum(outcome.stalls for outcome in ended),
        timeouts=sum(outcome.timeouts for outcome in ended),
    )


def spread(values: Sequence[int]) -> Spread:
    """Return the two percentiles, by nearest rank; 0 of nothing."""
    return Spread(percentile(values, 50), percentile(values, 95))


def percentile(values: Sequence[int], rank: int) -> int:
    """Return the smallest value that at least `rank` percent of the values do not exceed."""
    if not values:
        return 0
    return sorted(values)[max(0, ceil(len(values) * rank / 100) - 1)]
