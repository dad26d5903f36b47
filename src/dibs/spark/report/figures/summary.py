"""The figures of a report: the output of `dibs spark report --json` and the input of its page."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dibs.spark.report.figures.activity import DayStarts, WorkerSummary
from dibs.spark.report.figures.capacity import CapacityAdvice
from dibs.spark.report.figures.findings import FAILURE_ENDS, Outage, PoisonId
from dibs.spark.report.figures.ids import IdSummary
from dibs.spark.report.figures.latest_runs import RunSummary
from dibs.spark.report.figures.periods import DurationPercentiles, RangeFigures
from dibs.spark.report.figures.trimmed import TrimmedPeriod

#: Number of queues with charts and runs on the page, those with most attempts first.
MAX_CHARTED_QUEUES: Final = 12


class LittlesLaw(Struct, frozen=True, kw_only=True):
    """A check by Little's law: average active runs = attempts per second x seconds per attempt.

    `active` is counted minute by minute and `expected` run by run. Both include runs that are still
    active.
    """

    active: float
    expected: float
    agree: bool


class QueueSummary(Struct, frozen=True, kw_only=True):
    """The figures of one queue over the whole history."""

    queue: str
    #: Log level of the queue. At `runs`, `arrivals` counts the jobs that ended or are live.
    level: str
    begin: int
    end: int
    arrivals: int
    attempts: int
    ends: dict[str, int]
    wait: DurationPercentiles
    run: DurationPercentiles
    backlog_peak: int
    backlog_now: int
    active: float
    active_peak: int
    little: LittlesLaw
    #: Class of error -> number of attempts that ended with it.
    errors: dict[str, int]
    slowest: tuple[IdSummary, ...]
    hottest: tuple[IdSummary, ...]
    #: The ids with most failures.
    failing: tuple[IdSummary, ...]
    #: Figures of the last hour, day and week, and of the whole history, in this order.
    ranges: tuple[RangeFigures, ...]
    #: Starts by hour on the latest days.
    starts: tuple[DayStarts, ...]
    #: The workers with most attempts, and the number of all workers that had an attempt.
    workers: tuple[WorkerSummary, ...]
    worker_count: int
    capacity: CapacityAdvice | None = None
    #: Id -> its latest runs, for the ids in the tables of ids. Empty for a queue without charts.
    runs: dict[str, tuple[RunSummary, ...]] = {}

    @property
    def failures(self) -> int:
        """The number of attempts that failed, were retried, stalled or timed out."""
        return sum(self.ends[end] for end in FAILURE_ENDS)

    @property
    def listed_ids(self) -> list[str]:
        """The ids in the tables of ids of all ranges, without repetition."""
        return list(dict.fromkeys(id for figures in reversed(self.ranges) for id in figures.ids.names()))


class HistoryReport(Struct, frozen=True, kw_only=True):
    """The figures of a report. Times are ms since the epoch, UTC."""

    source: str
    generation: str
    begin: int
    end: int
    queues: tuple[QueueSummary, ...]
    outages: tuple[Outage, ...]
    poisons: tuple[PoisonId, ...]
    gaps: tuple[TrimmedPeriod, ...]
