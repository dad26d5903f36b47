"""The figures of periods: what happened in each, the latest state, and the series of the charts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import asdict, define, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.report.figures.findings import FAILURE_ENDS, MINUTE
from dibs.spark.report.figures.ids import TopIds, top_ids, top_ids_since
from dibs.spark.report.figures.parquet import WarehouseReader, datetime_to_ms, ms_to_timestamp, nearest_rank

HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
#: Maximum number of days in the heat map: the latest ones.
MAX_DAYS: Final = 14
#: Maximum number of workers that are listed, those with most attempts first.
MAX_WORKERS: Final = 30


class DayStarts(Struct, frozen=True, kw_only=True):
    """The starts of runs on one day."""

    #: Begin of the day in UTC, ms since the epoch.
    day: int
    #: Starts in each of its 24 hours.
    hours: tuple[int, ...]


class WorkerSummary(Struct, frozen=True, kw_only=True):
    """The attempts of one holder: a worker, as it names itself in its claims."""

    holder: str
    attempts: int
    failures: int
    #: Attempts that stalled: the worker died, or lost its lease.
    stalled: int
    #: Sum of the run times, ms.
    run_ms: int
    longest_run_ms: int
    #: Time of its latest end, ms since the epoch.
    last_end: int


def count_starts(minutes: Iterable[Mapping[str, Any]], begin: int, end: int) -> tuple[DayStarts, ...]:
    """Return the starts of a queue from `begin` to `end` (ms), by day and hour.

    A day without starts has zeros. Of more than MAX_DAYS days, the last ones are returned.
    """
    starts: Counter[int] = Counter()
    for row in minutes:
        if begin <= row["minute"] < end:
            starts[row["minute"] // HOUR] += row["claims"]
    last = (end - 1) // DAY
    first = max(last - MAX_DAYS + 1, begin // DAY)
    return tuple(
        DayStarts(day=day * DAY, hours=tuple(starts[day * 24 + hour] for hour in range(24)))
        for day in range(first, last + 1)
    )


@define
class _WorkerCounts:
    """The sums of one holder while the runs are read."""

    attempts: int = 0
    failures: int = 0
    stalled: int = 0
    run_ms: int = 0
    longest_run_ms: int = 0
    last_end: int = 0


@define
class WorkerSums:
    """The sums of each holder while runs are read."""

    _found: defaultdict[str, _WorkerCounts] = field(factory=lambda: defaultdict(_WorkerCounts))

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the runs of a batch."""
        sums = [("run_ms", "count"), ("run_ms", "sum"), ("run_ms", "max"), ("finished_at", "max")]
        groups = pa.Table.from_batches([batch]).group_by(["holder", "end"]).aggregate(sums)
        for row in groups.filter(pc.field("holder").is_valid()).to_pylist():
            _add(self._found[row["holder"]], row)

    def summaries(self) -> tuple[WorkerSummary, ...]:
        """Return the workers, those with most attempts first."""
        found = (WorkerSummary(holder=holder, **asdict(counts)) for holder, counts in self._found.items())
        return tuple(sorted(found, key=lambda worker: (-worker.attempts, worker.holder)))


def _add(counts: _WorkerCounts, row: Mapping[str, Any]) -> None:
    counts.attempts += row["run_ms_count"]
    counts.failures += row["run_ms_count"] if row["end"] in FAILURE_ENDS else 0
    counts.stalled += row["run_ms_count"] if row["end"] == "stalled" else 0
    counts.run_ms += row["run_ms_sum"]
    counts.longest_run_ms = max(counts.longest_run_ms, row["run_ms_max"])
    counts.last_end = max(counts.last_end, datetime_to_ms(row["finished_at_max"]))


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


#: Maximum number of points of a line in a chart of the whole history, and in one of a shorter range. In a
#: longer period, a point stands for several minutes.
MAX_POINTS: Final = 480
MAX_RANGE_POINTS: Final = 240

#: Column -> one value per point of the charts; None without data.
Series = dict[str, list[Any]]

# A point may stand for several minutes. It then shows the mean of a count per minute, and the maximum of
# a percentile or a peak.
_SUMMED_COLUMNS: Final = ("arrivals", "claims", *ATTEMPT_ENDS)
_MAX_COLUMNS: Final = (
    "wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "run_p50_ms", "run_p95_ms", "run_p99_ms",
    "backlog_due", "active_peak",
)  # fmt: skip


def chart_series(minutes: Sequence[Mapping[str, Any]], end: int) -> dict[str, Series]:
    """Return range -> the points of its charts; `end` (ms) is the end of the history.

    Ranges that are longer than the history of the queue are left out.
    """
    begin = minutes[0]["minute"]
    found = {"all": _points(minutes, begin, minutes[-1]["minute"] + MINUTE, MAX_POINTS)}
    for name, length in RANGES.items():
        if end - length > begin:
            found[name] = _points(minutes, end - length, end, MAX_RANGE_POINTS)
    return found


def _points(minutes: Sequence[Mapping[str, Any]], begin: int, end: int, most: int) -> Series:
    """Return evenly spaced points from `begin` to `end`."""
    step = -(-(end - begin) // MINUTE // most) * MINUTE
    points: list[list[Mapping[str, Any]]] = [[] for _ in range(-(-(end - begin) // step))]
    for row in minutes:
        if begin <= row["minute"] < end:
            points[(row["minute"] - begin) // step].append(row)
    series: Series = {"at": [begin + n * step for n in range(len(points))], "step": [step]}
    for name in _SUMMED_COLUMNS:
        series[name] = [_rate(rows, name, step) for rows in points]
    for name in _MAX_COLUMNS:
        worst = ([row[name] for row in rows if row[name] is not None] for rows in points)
        series[name] = [max(values, default=None) for values in worst]
    series["active"] = [_rate(rows, "active", step) for rows in points]
    return series


def _rate(rows: Sequence[Mapping[str, Any]], name: str, step: int) -> float:
    """Return the mean of a column per minute; four digits are more than a chart shows."""
    total: float = sum(row[name] for row in rows)
    return round(total * MINUTE / step, 4)
