"""When and where the runs of a queue were: starts by day and hour, and a summary of each worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import asdict, define, field
from msgspec import Struct

from dibs.spark.report.figures.findings import FAILURE_ENDS, MINUTE
from dibs.spark.report.figures.parquet import datetime_to_ms

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
