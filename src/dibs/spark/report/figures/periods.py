"""The figures of a queue in the last hour, day and week, in the period before each of them, and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.report.figures.activity import (
    HOUR,
    MAX_WORKERS,
    DayStarts,
    WorkerSummary,
    WorkerSums,
    count_starts,
)
from dibs.spark.report.figures.findings import FAILURE_ENDS, MINUTE
from dibs.spark.report.figures.ids import TopIds, top_ids, top_ids_since
from dibs.spark.report.figures.parquet import WarehouseReader, ms_to_timestamp, nearest_rank

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
    #: Attempts by how they ended.
    ends: dict[str, int]
    #: Most jobs that were due and not claimed at the end of a minute.
    backlog_peak: int
    #: Class of error -> number of attempts that ended with it.
    errors: dict[str, int]
    ids: TopIds
    #: The workers with most attempts, and the number of all workers that had an attempt.
    workers: tuple[WorkerSummary, ...]
    worker_count: int
    #: Starts by hour, of the latest days.
    starts: tuple[DayStarts, ...]


@frozen
class _Period:
    """A period of time, and the number of its attempts with each wait and each run time."""

    begin: int
    end: int
    waits: Counter[int | None] = field(factory=Counter)
    runs: Counter[int | None] = field(factory=Counter)

    @property
    def count(self) -> int:
        """The number of attempts that were counted."""
        return sum(self.runs.values())

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the attempts of a batch that ended in the period."""
        ended = pc.field("finished_at")
        return batch.filter((ended >= ms_to_timestamp(self.begin)) & (ended < ms_to_timestamp(self.end)))

    def add(self, its: pa.RecordBatch) -> None:
        """Count attempts of the period."""
        for name, counts in (("wait_ms", self.waits), ("run_ms", self.runs)):
            counts.update(_value_counts(its.column(name)))

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


def _value_counts(column: pa.Array) -> dict[Any, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}


@define
class _RangeSums:
    """The sums of a range and of the period before it while the runs of a queue are read."""

    name: str
    last: _Period
    before: _Period
    workers: WorkerSums = field(factory=WorkerSums)
    errors: Counter[str | None] = field(factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the attempts of a batch that ended in the range or before it."""
        its = self.last.select(batch)
        if its.num_rows:
            self.last.add(its)
            self.workers.add(its)
            self.errors.update(_value_counts(its.column("error_type")))
        self.before.add(self.before.select(batch))

    def summarize(self, minutes: Sequence[Mapping[str, Any]], begin: int, ids: TopIds) -> RangeFigures:
        """Return the figures of the range. `begin` is that of the whole history."""
        its = [row for row in minutes if row["minute"] >= self.last.begin]
        workers = self.workers.summaries()
        return RangeFigures(
            name=self.name,
            last=self.last.summarize(minutes),
            before=(self.before.summarize(minutes) if begin <= self.before.begin < self.before.end else None),
            claims=_sparkline(minutes, self.last.begin, self.last.end),
            ends={end: sum(row[end] for row in its) for end in ATTEMPT_ENDS},
            backlog_peak=max((row["backlog_due"] for row in its), default=0),
            errors={name: count for name, count in self.errors.most_common() if name is not None},
            ids=ids,
            workers=workers[:MAX_WORKERS],
            worker_count=len(workers),
            starts=count_starts(minutes, self.last.begin, self.last.end),
        )


def to_percentiles(counts: Mapping[int | None, int]) -> DurationPercentiles:
    """Return the percentiles of the values, given with the number of their occurrences."""
    return DurationPercentiles(
        p50=nearest_rank(counts, 50),
        p95=nearest_rank(counts, 95),
        p99=nearest_rank(counts, 99),
        longest=max((value for value in counts if value is not None), default=None),
    )


_COLUMNS: Final = ("finished_at", "wait_ms", "run_ms", "holder", "end", "error_type")


def summarize_ranges(
    reader: WarehouseReader, queue: str, minutes: Sequence[Mapping[str, Any]], span: tuple[int, int]
) -> tuple[tuple[RangeFigures, ...], Counter[int | None]]:
    """Return the figures of a queue in each range, and the number of its attempts with each run time.

    `span` is begin and end (ms) of the whole history.
    """
    begin, end = span
    whole = _RangeSums("all", _Period(begin, end), _Period(begin, begin))
    shorter = [
        _RangeSums(name, _Period(end - length, end), _Period(end - 2 * length, end - length))
        for name, length in RANGES.items()
        if end - length > begin
    ]
    for batch in reader.batches("runs", queue, _COLUMNS):
        for sums in (whole, *shorter):
            sums.add(batch)
    ids = top_ids(reader, queue)
    found = {"all": whole.summarize(minutes, begin, ids)}
    counted = whole.last.count
    for sums in reversed(shorter):
        # A range with as many runs as the longer one has the same runs.
        if sums.last.count != counted:
            counted = sums.last.count
            ids = top_ids_since(reader, queue, sums.last.begin, counted) if counted else TopIds()
        found[sums.name] = sums.summarize(minutes, begin, ids)
    return tuple(
        found.get(name) or _as_range(found["all"], name, minutes) for name in (*RANGES, "all")
    ), whole.last.runs


def _as_range(whole: RangeFigures, name: str, minutes: Iterable[Mapping[str, Any]]) -> RangeFigures:
    """Return the figures of a range that is longer than the history."""
    begin, end = whole.last.end - RANGES[name], whole.last.end
    last = replace(whole.last, begin=begin)
    return replace(whole, name=name, last=last, claims=_sparkline(minutes, begin, end))


def _sparkline(minutes: Iterable[Mapping[str, Any]], begin: int, end: int) -> tuple[int, ...]:
    points = [0] * SPARKLINE_POINTS
    for row in minutes:
        if begin <= row["minute"] < end:
            points[(row["minute"] - begin) * SPARKLINE_POINTS // (end - begin)] += row["claims"]
    return tuple(points)
