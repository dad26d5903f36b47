"""What a history says, as one value: the JSON of `dibs spark report --json`, and what its page is drawn from.

Made from the warehouse's Parquet alone: neither Spark nor the storage is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import ENDS
from dibs.spark.history.warehouse import Gap, Warehouse
from dibs.spark.report.capacity import MINUTE, Advice, advice, busiest
from dibs.spark.report.findings import BAD, Outage, Poison, outages_of, poisons_of, together
from dibs.spark.report.parquet import Tables, nearest_rank

#: Rows of a table on the page.
TOP: Final = 10
#: Rows looked at for poison: an id beyond them is no main trouble.
SUSPECTS: Final = 200
TARGET_WAIT_P95_MS: Final = 1_000
#: Points of a line on the page; a longer history has several minutes to a point.
MOST_POINTS: Final = 480


class Spread(Struct, frozen=True, kw_only=True):
    """Percentiles of times in ms, by nearest rank; None where nothing was timed."""

    p50: int | None
    p95: int | None
    p99: int | None
    longest: int | None


class Little(Struct, frozen=True, kw_only=True):
    """Little's law: active on average = attempts a second x seconds an attempt.

    The one side is counted minute by minute, the other run by run; what is active still counts on both.
    """

    active: float
    expected: float
    agree: bool


class IdRow(Struct, frozen=True, kw_only=True):
    """An id among the slowest or the hottest. Times are ms."""

    id: str
    attempts: int
    completed: int
    failed: int
    merged: int
    longest_wait_ms: int
    longest_run_ms: int
    run_ms: int


class QueueSummary(Struct, frozen=True, kw_only=True):
    """One queue over the whole history."""

    queue: str
    #: `all` if its log told every enqueue; at `runs` arrivals are those of the jobs that ended or are live.
    level: str
    begin: int
    end: int
    arrivals: int
    attempts: int
    ends: dict[str, int]
    wait: Spread
    run: Spread
    backlog_peak: int
    backlog_now: int
    active: float
    active_peak: int
    little: Little
    #: Class of error -> attempts that ended with it.
    errors: dict[str, int]
    slowest: tuple[IdRow, ...]
    hottest: tuple[IdRow, ...]
    capacity: Advice | None


class Report(Struct, frozen=True, kw_only=True):
    """Everything a report says. Times are ms since the epoch, UTC."""

    source: str
    generation: str
    begin: int
    end: int
    queues: tuple[QueueSummary, ...]
    outages: tuple[Outage, ...]
    poisons: tuple[Poison, ...]
    gaps: tuple[Gap, ...]


#: Column -> one value for each point, None where there is nothing to tell.
Series = dict[str, list[Any]]


def report(root: Path, target_wait_p95_ms: int = TARGET_WAIT_P95_MS) -> tuple[Report, dict[str, Series]]:
    """Return the report of a warehouse, and the series of each queue for its charts.

    Raises Refused where there is no warehouse, StorageTooNew for one of a newer dibs.
    """
    warehouse = Warehouse.existing(root)
    tables = Tables(warehouse)
    queues, outages, poisons, series = [], [], [], {}
    for name in tables.queues():
        minutes = tables.minutes(name)
        told = _queue(tables, name, minutes, target_wait_p95_ms)
        queues.append(told)
        outages += outages_of(name, minutes, told.run.p95 or 0)
        poisons += _poisons(tables, told)
        series[name] = _series(minutes)
    made = Report(
        source=warehouse.state.source,
        generation=warehouse.generation,
        begin=min((queue.begin for queue in queues), default=0),
        end=max((queue.end for queue in queues), default=0),
        queues=tuple(sorted(queues, key=lambda queue: (-queue.attempts, queue.queue))),
        outages=tuple(together(outages)),
        poisons=tuple(sorted(poisons, key=lambda poison: -sum(poison.bad.values()))[:TOP]),
        gaps=warehouse.state.gaps,
    )
    return made, series


def _queue(tables: Tables, queue: str, minutes: Sequence[Mapping[str, Any]], target_ms: int) -> QueueSummary:
    runs = tables.counted("runs", queue, "run_ms")
    ends = {end: sum(row[end] for row in minutes) for end in ENDS}
    peak = max(row["active_peak"] for row in minutes)
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    errors = tables.counted("runs", queue, "error_type")
    return QueueSummary(
        queue=queue,
        level="runs" if all(row["enqueues"] is None for row in minutes) else "all",
        begin=begin,
        end=end,
        arrivals=sum(row["arrivals"] for row in minutes),
        attempts=sum(row["attempts"] for row in minutes),
        ends=ends,
        wait=_spread(tables.counted("runs", queue, "wait_ms")),
        run=_spread(runs),
        backlog_peak=max(row["backlog_due"] for row in minutes),
        backlog_now=minutes[-1]["backlog"],
        active=sum(row["active"] for row in minutes) * MINUTE / (end - begin),
        active_peak=peak,
        little=_little(tables, queue, minutes, runs),
        errors={name: n for name, n in errors.most_common() if name is not None},
        slowest=_ids(tables, queue, "longest_run_ms"),
        hottest=_ids(tables, queue, "attempts"),
        capacity=_capacity(tables, queue, minutes, target_ms, peak),
    )


def _spread(counts: Counter[int | None]) -> Spread:
    return Spread(
        p50=nearest_rank(counts, 50),
        p95=nearest_rank(counts, 95),
        p99=nearest_rank(counts, 99),
        longest=max((value for value in counts if value is not None), default=None),
    )


def _little(
    tables: Tables, queue: str, minutes: Sequence[Mapping[str, Any]], runs: Counter[int | None]
) -> Little:
    end = minutes[-1]["minute"] + MINUTE
    by_minute = round(sum(row["active"] * MINUTE for row in minutes))
    still = tables.pairs("live", queue, ("claimed_at", "id"), pc.field("claimed_at").is_valid())
    by_run = sum((value or 0) * n for value, n in runs.items()) + sum(end - claimed for claimed, _ in still)
    length = end - minutes[0]["minute"]
    return Little(active=by_minute / length, expected=by_run / length, agree=by_minute == by_run)


def _ids(tables: Tables, queue: str, order: str) -> tuple[IdRow, ...]:
    return tuple(IdRow(**row) for row in tables.largest("ids", queue, IdRow.__struct_fields__, order, TOP))


def _capacity(
    tables: Tables, queue: str, minutes: Sequence[Mapping[str, Any]], target_ms: int, peak: int
) -> Advice | None:
    begin, end = busiest(minutes)
    due = pc.field("due_at")
    inside = (due >= _moment(begin)) & (due < _moment(end))
    return advice(tables.pairs("runs", queue, ("due_at", "run_ms"), inside), (begin, end), target_ms, peak)


def _moment(at: int) -> Any:
    return pa.scalar(at * 1000, pa.timestamp("us", tz="UTC"))


def _poisons(tables: Tables, told: QueueSummary) -> list[Poison]:
    in_all = sum(told.ends[end] for end in BAD)
    if not in_all:
        return []
    bad = pc.field(BAD[0])
    for end in BAD[1:]:
        bad += pc.field(end)
    columns = ("id", "attempts", "completed", *BAD)
    suspects = tables.largest(
        "ids", told.queue, columns, "attempts", SUSPECTS, bad * 2 > pc.field("attempts")
    )
    return [_named(tables, poison) for poison in poisons_of(told.queue, suspects, in_all)]


def _named(tables: Tables, poison: Poison) -> Poison:
    """Add the class of error an id goes wrong with most."""
    its = (pc.field("id") == poison.id) & pc.field("error_type").is_valid()
    pairs = tables.pairs("runs", poison.queue, ("id", "error_type"), its)
    errors = Counter(error for _, error in pairs)
    return replace(poison, error_type=errors.most_common(1)[0][0] if errors else None)


# What several minutes of one point come to: counts are added, of times the worst is shown.
_ADDED: Final = ("arrivals", "claims", *ENDS)
_WORST: Final = (
    "wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "run_p50_ms", "run_p95_ms", "run_p99_ms",
    "backlog_due", "active_peak",
)  # fmt: skip


def _series(minutes: Sequence[Mapping[str, Any]]) -> Series:
    """Return points for the charts, evenly spaced from the first minute to the last."""
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    step = -(-(end - begin) // MINUTE // MOST_POINTS) * MINUTE
    points: list[list[Mapping[str, Any]]] = [[] for _ in range(-(-(end - begin) // step))]
    for row in minutes:
        points[(row["minute"] - begin) // step].append(row)
    series: Series = {"at": [begin + n * step for n in range(len(points))], "step": [step]}
    for name in _ADDED:
        series[name] = [sum(row[name] for row in rows) * MINUTE / step for rows in points]
    for name in _WORST:
        worst = ([row[name] for row in rows if row[name] is not None] for rows in points)
        series[name] = [max(values, default=None) for values in worst]
    series["active"] = [sum(row["active"] for row in rows) * MINUTE / step for rows in points]
    return series
