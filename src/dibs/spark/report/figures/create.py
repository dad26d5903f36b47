"""The computation of a report from the files of a warehouse, without Spark and without the storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
from msgspec.structs import replace

from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.figures.capacity import CapacityAdvice, advise, busiest_hour
from dibs.spark.report.figures.findings import MINUTE, find_outages, merge_outages
from dibs.spark.report.figures.ids import poison_ids
from dibs.spark.report.figures.latest_runs import latest_runs
from dibs.spark.report.figures.parquet import WarehouseReader, ms_to_timestamp
from dibs.spark.report.figures.periods import summarize_ranges
from dibs.spark.report.figures.series import Series, chart_series
from dibs.spark.report.figures.summary import MAX_CHARTED_QUEUES, HistoryReport, LittlesLaw, QueueSummary
from dibs.spark.report.figures.trimmed import find_trimmed_periods

#: Number of ids that are listed as failing nearly every time.
MAX_POISON_IDS: Final = 100
TARGET_WAIT_P95_MS: Final = 1_000


def create_report(
    root: str | Path,
    target_wait_p95_ms: int = TARGET_WAIT_P95_MS,
    *,
    sizes: Mapping[str, int] | None = None,
    with_error_texts: bool = True,
) -> tuple[HistoryReport, dict[str, dict[str, Series]]]:
    """Return the report of a warehouse, and queue -> range -> the series of its charts.

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
        poisons += poison_ids(reader, name, summary.failures)
        series[name] = chart_series(minutes, end)
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
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    ranges, runs = summarize_ranges(reader, queue, minutes, (begin, last))
    whole = ranges[-1]
    return QueueSummary(
        queue=queue,
        level="runs" if all(row["enqueues"] is None for row in minutes) else "all",
        begin=begin,
        end=end,
        arrivals=sum(row["arrivals"] for row in minutes),
        attempts=whole.last.attempts,
        ends=whole.ends,
        wait=whole.last.wait,
        run=whole.last.run,
        backlog_peak=whole.backlog_peak,
        backlog_now=minutes[-1]["backlog"],
        active=sum(row["active"] for row in minutes) * MINUTE / (end - begin),
        active_peak=max(row["active_peak"] for row in minutes),
        little=_check_littles_law(reader, queue, minutes, runs),
        errors=whole.errors,
        slowest=whole.ids.slowest,
        hottest=whole.ids.hottest,
        failing=whole.ids.failing,
        starts=whole.starts,
        workers=whole.workers,
        worker_count=whole.worker_count,
        ranges=ranges,
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
