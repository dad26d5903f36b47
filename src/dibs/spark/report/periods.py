"""The figures of a queue in the last hour, day and week, and in the period before each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import field, frozen
from msgspec import Struct

from dibs.spark.report.findings import FAILURE_ENDS, MINUTE
from dibs.spark.report.parquet import WarehouseReader, ms_to_timestamp, nearest_rank

HOUR: Final = 60 * MINUTE
#: Name of a range -> its length in ms. The range `all` is the whole history.
RANGES: Final = {"hour": HOUR, "day": 24 * HOUR, "week": 7 * 24 * HOUR}
#: Number of points of a sparkline.
SPARKLINE_POINTS: Final = 48


class DurationPercentiles(Struct, frozen=True, kw_only=True):
    """Percentiles of times in ms, by nearest rank; None without any value."""

    p50: int | None
    p95: int | None
    p99: int | None
    longest: int | None


class PeriodFigures(Struct, frozen=True, kw_only=True):
    """The figures of one queue in one period. Times are ms since the epoch."""

    begin: int
    end: int
    attempts: int
    #: Attempts that failed, were retried, stalled or timed out.
    failures: int
    wait: DurationPercentiles
    run: DurationPercentiles
    #: Jobs due and not claimed at the end of the period.
    backlog: int


class RangeFigures(Struct, frozen=True, kw_only=True):
    """The figures of one queue in a range that ends with the history, and in the period before it."""

    #: hour, day, week or all.
    name: str
    last: PeriodFigures
    #: None if the history does not have the whole period before.
    before: PeriodFigures | None
    #: Claims in SPARKLINE_POINTS equal parts of the range.
    claims: tuple[int, ...]


@frozen
class _Period:
    """A period of time, and the number of its attempts with each wait and each run time."""

    begin: int
    end: int
    waits: Counter[int | None] = field(factory=Counter)
    runs: Counter[int | None] = field(factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the attempts of a batch that ended in the period."""
        ended = pc.field("finished_at")
        its = batch.filter((ended >= ms_to_timestamp(self.begin)) & (ended < ms_to_timestamp(self.end)))
        for name, counts in (("wait_ms", self.waits), ("run_ms", self.runs)):
            found = pc.value_counts(its.column(name)).to_pylist()
            counts.update({entry["values"]: entry["counts"] for entry in found})

    def summarize(self, minutes: Iterable[Mapping[str, Any]]) -> PeriodFigures:
        """Return the figures of the period."""
        its = [row for row in minutes if self.begin <= row["minute"] < self.end]
        has_last = bool(its) and its[-1]["minute"] == self.end - MINUTE
        return PeriodFigures(
            begin=self.begin,
            end=self.end,
            attempts=sum(row["attempts"] for row in its),
            failures=sum(row[end] for row in its for end in FAILURE_ENDS),
            wait=to_percentiles(self.waits),
            run=to_percentiles(self.runs),
            backlog=its[-1]["backlog_due"] if has_last else 0,
        )


def to_percentiles(counts: Mapping[int | None, int]) -> DurationPercentiles:
    """Return the percentiles of the values, given with the number of their occurrences."""
    return DurationPercentiles(
        p50=nearest_rank(counts, 50),
        p95=nearest_rank(counts, 95),
        p99=nearest_rank(counts, 99),
        longest=max((value for value in counts if value is not None), default=None),
    )


def summarize_ranges(
    reader: WarehouseReader, queue: str, minutes: Sequence[Mapping[str, Any]], span: tuple[int, int]
) -> tuple[RangeFigures, ...]:
    """Return the figures of a queue in each range. `span` is begin and end (ms) of the whole history."""
    begin, end = span
    pairs = {name: (_Period(end - length, end), _Period(end - 2 * length, end - length))
             for name, length in RANGES.items()}  # fmt: skip
    pairs["all"] = (_Period(begin, end), _Period(begin, begin))
    for batch in reader.batches("runs", queue, ("finished_at", "wait_ms", "run_ms")):
        for period in (period for pair in pairs.values() for period in pair):
            period.add(batch)
    return tuple(
        RangeFigures(
            name=name,
            last=last.summarize(minutes),
            before=before.summarize(minutes) if begin <= before.begin < before.end else None,
            claims=_sparkline(minutes, last.begin, last.end),
        )
        for name, (last, before) in pairs.items()
    )


def _sparkline(minutes: Iterable[Mapping[str, Any]], begin: int, end: int) -> tuple[int, ...]:
    points = [0] * SPARKLINE_POINTS
    for row in minutes:
        if begin <= row["minute"] < end:
            points[(row["minute"] - begin) * SPARKLINE_POINTS // (end - begin)] += row["claims"]
    return tuple(points)
