"""Statistics of a demo run, computed from the outcomes of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from attrs import frozen

from dibs.model.job import Outcome


@frozen
class Percentiles:
    """The median and the 95th percentile, ms."""

    p50: int
    p95: int


@frozen(kw_only=True)
class Figures:
    """Statistics of the file jobs of one run of the demo."""

    jobs: int
    seconds: float
    jobs_per_second: float
    #: Time from when a job was due until it was claimed.
    wait_ms: Percentiles
    #: Time from the claim of a job until its end.
    run_ms: Percentiles
    retries: int
    stalls: int
    timeouts: int


def compute_figures(outcomes: Iterable[Outcome], seconds: float, since: int = 0) -> Figures:
    """Compute the statistics of the jobs that ended in this run.

    `since` is the start of the run, ms since the epoch. The waiting time of jobs that an interrupted run left
    in the queue is counted from there.
    """
    ended = list(outcomes)
    claimed = [outcome for outcome in ended if outcome.claimed_at is not None]
    return Figures(
        jobs=len(ended),
        seconds=round(seconds, 3),
        jobs_per_second=round(len(ended) / seconds, 1) if seconds > 0 else 0.0,
        wait_ms=percentiles([max(0, (o.claimed_at or 0) - max(o.run_at, since)) for o in claimed]),
        run_ms=percentiles([max(0, o.ended_at - (o.claimed_at or 0)) for o in claimed]),
        retries=sum(outcome.retries for outcome in ended),
        stalls=sum(outcome.stalls for outcome in ended),
        timeouts=sum(outcome.timeouts for outcome in ended),
    )


def percentiles(values: Sequence[int]) -> Percentiles:
    """Return both percentiles, by nearest rank; 0 without values."""
    return Percentiles(percentile(values, 50), percentile(values, 95))


def percentile(values: Sequence[int], rank: int) -> int:
    """Return the smallest value that at least `rank` percent of the values do not exceed."""
    if not values:
        return 0
    return sorted(values)[max(0, ceil(len(values) * rank / 100) - 1)]
