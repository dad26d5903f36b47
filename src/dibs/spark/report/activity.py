"""When and where the runs of a queue were: starts by day and hour, and a summary of each worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import asdict, define
from msgspec import Struct

from dibs.spark.report.findings import FAILURE_ENDS
from dibs.spark.report.parquet import WarehouseReader, datetime_to_ms
from dibs.spark.report.periods import HOUR

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


def count_starts(minutes: Iterable[Mapping[str, Any]]) -> tuple[DayStarts, ...]:
    """Return the starts of the last MAX_DAYS days of a queue in order; a day without starts has zeros."""
    starts: Counter[int] = Counter()
    last = 0
    for row in minutes:
        starts[row["minute"] // HOUR] += row["claims"]
        last = row["minute"] // DAY
    first = max(last - MAX_DAYS + 1, min(starts, default=0) // 24)
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


def summarize_workers(reader: WarehouseReader, queue: str) -> tuple[WorkerSummary, ...]:
    """Return the workers with any attempt of a queue, those with most attempts first."""
    found: defaultdict[str, _WorkerCounts] = defaultdict(_WorkerCounts)
    for batch in reader.batches("runs", queue, ("holder", "end", "run_ms", "finished_at")):
        sums = [("run_ms", "count"), ("run_ms", "sum"), ("run_ms", "max"), ("finished_at", "max")]
        groups = pa.Table.from_batches([batch]).group_by(["holder", "end"]).aggregate(sums)
        for row in groups.filter(pc.field("holder").is_valid()).to_pylist():
            _add(found[row["holder"]], row)
    summaries = (WorkerSummary(holder=holder, **asdict(counts)) for holder, counts in found.items())
    return tuple(sorted(summaries, key=lambda worker: (-worker.attempts, worker.holder)))


def _add(counts: _WorkerCounts, row: Mapping[str, Any]) -> None:
    counts.attempts += row["run_ms_count"]
    counts.failures += row["run_ms_count"] if row["end"] in FAILURE_ENDS else 0
    counts.stalled += row["run_ms_count"] if row["end"] == "stalled" else 0
    counts.run_ms += row["run_ms_sum"]
    counts.longest_run_ms = max(counts.longest_run_ms, row["run_ms_max"])
    counts.last_end = max(counts.last_end, datetime_to_ms(row["finished_at_max"]))
