"""The figures of a report: the output of `dibs spark report --json` and the input of its page.

They are computed from the Parquet files of the warehouse, without Spark and without the storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.activity import (
    MAX_WORKERS,
    DayStarts,
    WorkerSummary,
    count_starts,
    summarize_workers,
)
from dibs.spark.report.capacity import MINUTE, CapacityAdvice, advise, busiest_hour
from dibs.spark.report.findings import (
    FAILURE_ENDS,
    Outage,
    PoisonId,
    find_outages,
    find_poison_ids,
    merge_outages,
)
from dibs.spark.report.latest_runs import RunSummary, latest_runs
from dibs.spark.report.parquet import WarehouseReader, ms_to_timestamp
from dibs.spark.report.periods import DurationPercentiles, RangeFigures, summarize_ranges, to_percentiles
from dibs.spark.report.trimmed import TrimmedPeriod, find_trimmed_periods

#: Number of ids listed as the slowest, as the most active, and as those with most failures.
TOP_IDS: Final = 10
#: Number of queues with charts and runs on the page, those with most attempts first.
MAX_CHARTED_QUEUES: Final = 12
#: Number of ids that are listed as failing nearly every time.
MAX_POISON_IDS: Final = 100
#: Number of ids, those with most attempts, that are checked for failing nearly every time.
POISON_CANDIDATES: Final = 200
TARGET_WAIT_P95_MS: Final = 1_000
#: Maximum number of points of a line in a chart. In a longer history, a point stands for several minutes.
MAX_POINTS: Final = 480


class LittlesLaw(Struct, frozen=True, kw_only=True):
    """A check by Little's law: average active runs = attempts per second x seconds per attempt.

    `active` is counted minute by minute and `expected` run by run. Both include runs that are still
    active.
    """

    active: float
    expected: float
    agree: bool


class IdSummary(Struct, frozen=True, kw_only=True):
    """An id in one of the tables of ids. Times are ms."""

    id: str
    attempts: int
    completed: int
    failed: int
    #: Attempts that failed, were retried, stalled or timed out.
    failures: int
    merged: int
    longest_wait_ms: int
    longest_run_ms: int
    run_ms: int


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
    #: Figures of the last hour, day and week, and of the whole history.
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
        """The ids in the tables of ids, without repetition."""
        return list(dict.fromkeys(row.id for row in (*self.failing, *self.slowest, *self.hottest)))


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


#: Column -> one value per point of the charts; None without data.
Series = dict[str, list[Any]]


def create_report(
    root: str | Path,
    target_wait_p95_ms: int = TARGET_WAIT_P95_MS,
    *,
    sizes: Mapping[str, int] | None = None,
    with_error_texts: bool = True,
) -> tuple[HistoryReport, dict[str, Series]]:
    """Return the report of a warehouse, and queue -> the series of its charts.

    `sizes` has the capacity units of a run by queue, as handlers declare them (`app.handlers.sizes()`).
    Without `with_error_texts`, the runs have no messages and tracebacks, which may quote data of jobs.
    Raise Refused if the folder has no warehouse, and StorageTooNew for a warehouse that a newer dibs has
    written.
    """
    warehouse = Warehouse.existing(root)
    reader = WarehouseReader(warehouse)
    names = reader.queues()
    end = max(map(reader.last_minute, names), default=-MINUTE) + MINUTE
    queues, outages, poisons, series = [], [], [], {}
    for name in names:
        minutes = reader.minutes(name)
        summary = _summarize_queue(reader, name, minutes, end)
        capacity = _advise_capacity(reader, summary, minutes, target_wait_p95_ms, (sizes or {}).get(name))
        queues.append(replace(summary, capacity=capacity))
        outages += find_outages(name, minutes, summary.run.p95 or 0)
        poisons += _poison_ids(reader, summary)
        series[name] = _chart_series(minutes)
    figures = HistoryReport(
        source=warehouse.state.source,
        generation=warehouse.generation,
        begin=min((queue.begin for queue in queues), default=0),
        end=end,
        queues=tuple(_with_latest_runs(reader, queues, with_error_texts=with_error_texts)),
        outages=tuple(merge_outages(outages)),
        poisons=tuple(sorted(poisons, key=lambda poison: -sum(poison.bad.values()))[:MAX_POISON_IDS]),
        gaps=tuple(find_trimmed_periods(reader, warehouse.state.gaps)),
    )
    return figures, series


def _with_latest_runs(
    reader: WarehouseReader, queues: Iterable[QueueSummary], *, with_error_texts: bool
) -> Iterator[QueueSummary]:
    """Yield the queues, those with most attempts first; the first MAX_CHARTED_QUEUES with runs."""
    ordered = sorted(queues, key=lambda queue: (-queue.attempts, queue.queue))
    for queue in ordered[:MAX_CHARTED_QUEUES]:
        runs = latest_runs(reader, queue.queue, queue.listed_ids, with_error_texts=with_error_texts)
        yield replace(queue, runs=runs)
    yield from ordered[MAX_CHARTED_QUEUES:]


def _summarize_queue(
    reader: WarehouseReader, queue: str, minutes: Sequence[Mapping[str, Any]], last: int
) -> QueueSummary:
    runs = reader.count_values("runs", queue, "run_ms")
    ends = {end: sum(row[end] for row in minutes) for end in ATTEMPT_ENDS}
    peak = max(row["active_peak"] for row in minutes)
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    errors = reader.count_values("runs", queue, "error_type")
    workers = summarize_workers(reader, queue)
    return QueueSummary(
        queue=queue,
        level="runs" if all(row["enqueues"] is None for row in minutes) else "all",
        begin=begin,
        end=end,
        arrivals=sum(row["arrivals"] for row in minutes),
        attempts=sum(row["attempts"] for row in minutes),
        ends=ends,
        wait=to_percentiles(reader.count_values("runs", queue, "wait_ms")),
        run=to_percentiles(runs),
        backlog_peak=max(row["backlog_due"] for row in minutes),
        backlog_now=minutes[-1]["backlog"],
        active=sum(row["active"] for row in minutes) * MINUTE / (end - begin),
        active_peak=peak,
        little=_check_littles_law(reader, queue, minutes, runs),
        errors={name: n for name, n in errors.most_common() if name is not None},
        slowest=_top_ids(reader, queue, "longest_run_ms"),
        hottest=_top_ids(reader, queue, "attempts"),
        failing=tuple(row for row in _top_ids(reader, queue, *FAILURE_ENDS) if row.failures),
        starts=count_starts(minutes),
        workers=workers[:MAX_WORKERS],
        worker_count=len(workers),
        ranges=summarize_ranges(reader, queue, minutes, (begin, last)),
    )


def _check_littles_law(
    reader: WarehouseReader, queue: str, minutes: Sequence[Mapping[str, Any]], runs: Counter[int | None]
) -> LittlesLaw:
    end = minutes[-1]["minute"] + MINUTE
    by_minute = round(sum(row["active"] * MINUTE for row in minutes))
    still_active = reader.column_pairs("live", queue, ("claimed_at", "id"), pc.field("claimed_at").is_valid())
    by_run = sum((value or 0) * n for value, n in runs.items()) + sum(
        end - claimed for claimed, _ in still_active
    )
    length = end - minutes[0]["minute"]
    return LittlesLaw(active=by_minute / length, expected=by_run / length, agree=by_minute == by_run)


def _top_ids(reader: WarehouseReader, queue: str, *order: str) -> tuple[IdSummary, ...]:
    """Return the ids with the largest sums of the columns `order`."""
    own = [name for name in IdSummary.__struct_fields__ if name != "failures"]
    rows = reader.top_rows("ids", queue, [*dict.fromkeys((*own, *FAILURE_ENDS))], order, TOP_IDS)
    return tuple(
        IdSummary(**{name: row[name] for name in own}, failures=sum(row[end] for end in FAILURE_ENDS))
        for row in rows
    )


def _advise_capacity(
    reader: WarehouseReader,
    queue: QueueSummary,
    minutes: Sequence[Mapping[str, Any]],
    target_ms: int,
    size: int | None,
) -> CapacityAdvice | None:
    begin, end = busiest_hour(minutes)
    due = pc.field("due_at")
    in_hour = (due >= ms_to_timestamp(begin)) & (due < ms_to_timestamp(end))
    attempts = reader.column_pairs("runs", queue.queue, ("due_at", "run_ms"), in_hour)
    return advise(attempts, (begin, end), target_ms, queue.active_peak, size)


def _poison_ids(reader: WarehouseReader, summary: QueueSummary) -> list[PoisonId]:
    in_all = summary.failures
    if not in_all:
        return []
    bad = pc.field(FAILURE_ENDS[0])
    for end in FAILURE_ENDS[1:]:
        bad += pc.field(end)
    columns = ("id", "attempts", "completed", *FAILURE_ENDS)
    suspects = reader.top_rows(
        "ids", summary.queue, columns, ("attempts",), POISON_CANDIDATES, bad * 2 > pc.field("attempts")
    )
    return [_with_error_type(reader, poison) for poison in find_poison_ids(summary.queue, suspects, in_all)]


def _with_error_type(reader: WarehouseReader, poison: PoisonId) -> PoisonId:
    """Return the poison id with `error_type` set to the most frequent class of its errors."""
    its = (pc.field("id") == poison.id) & pc.field("error_type").is_valid()
    errors = Counter(
        error for _, error in reader.column_pairs("runs", poison.queue, ("id", "error_type"), its)
    )
    return replace(poison, error_type=errors.most_common(1)[0][0] if errors else None)


# A point may stand for several minutes. It then shows the mean of a count per minute, and the maximum of
# a percentile or a peak.
_SUMMED_COLUMNS: Final = ("arrivals", "claims", *ATTEMPT_ENDS)
_MAX_COLUMNS: Final = (
    "wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "run_p50_ms", "run_p95_ms", "run_p99_ms",
    "backlog_due", "active_peak",
)  # fmt: skip


def _chart_series(minutes: Sequence[Mapping[str, Any]]) -> Series:
    """Return the points of the charts, evenly spaced from the first minute to the last."""
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    step = -(-(end - begin) // MINUTE // MAX_POINTS) * MINUTE
    points: list[list[Mapping[str, Any]]] = [[] for _ in range(-(-(end - begin) // step))]
    for row in minutes:
        points[(row["minute"] - begin) // step].append(row)
    series: Series = {"at": [begin + n * step for n in range(len(points))], "step": [step]}
    for name in _SUMMED_COLUMNS:
        series[name] = [sum(row[name] for row in rows) * MINUTE / step for rows in points]
    for name in _MAX_COLUMNS:
        worst = ([row[name] for row in rows if row[name] is not None] for rows in points)
        series[name] = [max(values, default=None) for values in worst]
    series["active"] = [sum(row["active"] for row in rows) * MINUTE / step for rows in points]
    return series
