"""The figures of periods: what happened in each, the latest state, and the series of the charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from attrs import frozen
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.report.figures.findings import FAILURE_ENDS, MINUTE
from dibs.spark.report.figures.ids import TopIds, top_ids
from dibs.spark.report.figures.reader import HistoryReader, finished_in

HOUR: Final = 60 * MINUTE
#: Maximum number of days in the heat map: the latest ones.
MAX_DAYS: Final = 14
#: Maximum number of workers, and of groups, that are listed, those with most attempts first.
MAX_GROUPS: Final = 30


class DayStarts(Struct, frozen=True, kw_only=True):
    """The starts of runs on one day."""

    #: Begin of the day in the time zone of the report, ms since the epoch.
    day: int
    #: Starts in each of its hours 0 to 23. An hour that a change of the clock repeats has the starts of both.
    hours: tuple[int, ...]


class GroupSummary(Struct, frozen=True, kw_only=True):
    """The attempts of one group: those of a worker, or with one key, attribute or class of error."""

    #: Name of the group: that of the worker as it names itself in its claims, the key, or a JSON text of the
    #: attribute.
    name: str
    attempts: int
    failures: int
    #: Attempts that stalled: the worker died, or lost its lease.
    stalled: int
    wait_p95_ms: int
    #: Sum of the run times, ms.
    run_ms: int
    longest_run_ms: int
    #: Time of its latest end, ms since the epoch.
    last_end: int


def count_starts(
    minutes: Iterable[Mapping[str, Any]], begin: int, end: int, zone: ZoneInfo
) -> tuple[DayStarts, ...]:
    """Return the starts of a queue from `begin` to `end` (ms), by day and hour of a time zone.

    A day without starts has zeros. Of more than MAX_DAYS days, the last ones are returned.
    """
    starts: Counter[tuple[int, int]] = Counter()
    for row in minutes:
        if begin <= row["minute"] < end:
            moment = datetime.fromtimestamp(row["minute"] / 1000, zone)
            starts[moment.toordinal(), moment.hour] += row["claims"]
    first, last = (datetime.fromtimestamp(at / 1000, zone).toordinal() for at in (begin, end - 1))
    return tuple(
        DayStarts(
            day=round(datetime.fromordinal(day).replace(tzinfo=zone).timestamp() * 1000),
            hours=tuple(starts[day, hour] for hour in range(24)),
        )
        for day in range(max(first, last - MAX_DAYS + 1), last + 1)
    )


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
    #: The classes of `errors` that no earlier attempt in the window ended with.
    new_errors: tuple[str, ...]
    #: The workers with most attempts, and the number of all workers that had an attempt.
    workers: tuple[GroupSummary, ...]
    worker_count: int
    #: The groups with most attempts of a report that groups its attempts, and the number of all groups.
    groups: tuple[GroupSummary, ...]
    group_count: int
    #: Starts by hour, of the latest days.
    starts: tuple[DayStarts, ...]


@frozen(kw_only=True)
class View:
    """The settings of the figures of a queue: a span in ms, the time zone of days, and groups of attempts."""

    begin: int
    end: int
    zone: ZoneInfo
    #: An expression of SQL on `runs` that names the group of an attempt; "" for no groups.
    group: str = ""


def summarize_ranges(
    reader: HistoryReader, minutes: Sequence[Mapping[str, Any]], view: View
) -> tuple[RangeFigures, ...]:
    """Return the figures of the selected queue in each range. A view begins with the queue."""
    found = {
        name: _summarize_range(reader, minutes, name, view.end - length, view)
        for name, length in RANGES.items()
        if view.end - length > view.begin
    }
    # The last one, as `poison_ids` reads the sums of its ids.
    whole = found["all"] = _summarize_range(reader, minutes, "all", view.begin, view)
    return tuple(found.get(name) or _as_range(whole, name, minutes) for name in (*RANGES, "all"))


def _summarize_range(
    reader: HistoryReader, minutes: Sequence[Mapping[str, Any]], name: str, begin: int, view: View
) -> RangeFigures:
    end = view.end
    span = begin, end
    its = [row for row in minutes if row["minute"] >= begin]
    earlier = 2 * begin - end
    workers = _group_attempts(reader, span, "holder")
    groups = _group_attempts(reader, span, view.group) if view.group else ()
    errors = _count_errors(reader, span)
    known = _count_errors(reader, (view.begin, begin)) if begin > view.begin else errors
    return RangeFigures(
        name=name,
        last=_period(reader, minutes, span),
        before=_period(reader, minutes, (earlier, begin)) if earlier >= view.begin else None,
        claims=_sparkline(minutes, begin, end),
        ends={kind: sum(row[kind] for row in its) for kind in ATTEMPT_ENDS},
        backlog_peak=max((row["backlog_due"] for row in its), default=0),
        errors=errors,
        new_errors=tuple(error for error in errors if error not in known),
        ids=top_ids(reader, span),
        workers=workers[:MAX_GROUPS],
        worker_count=len(workers),
        groups=groups[:MAX_GROUPS],
        group_count=len(groups),
        starts=count_starts(minutes, begin, end, view.zone),
    )


def _in(span: tuple[int, int]) -> str:
    """Return the attempts of the selected queue that ended in a span of ms."""
    return f"its_runs WHERE {finished_in(span)}"


def _count_errors(reader: HistoryReader, span: tuple[int, int]) -> dict[str, int]:
    """Return class of error -> attempts that ended with it in a span, those with most attempts first."""
    rows = reader.rows(
        f"SELECT error_type, count(*) AS number FROM {_in(span)} "  # noqa: S608 - numbers
        "AND error_type IS NOT NULL GROUP BY error_type ORDER BY number DESC, error_type"
    )
    return {row["error_type"]: row["number"] for row in rows}


def _period(
    reader: HistoryReader, minutes: Iterable[Mapping[str, Any]], span: tuple[int, int]
) -> PeriodFigures:
    begin, end = span
    its = [row for row in minutes if begin <= row["minute"] < end]
    has_last = bool(its) and its[-1]["minute"] == end - MINUTE
    # quantile_disc is the nearest rank, and exact for these decimals.
    measures = ", ".join(
        f"quantile_disc({name}, [0.50, 0.95, 0.99]) AS {name}, max({name}) AS {name}_max"
        for name in ("wait_ms", "run_ms")
    )
    [row] = reader.rows(f"SELECT {measures} FROM {_in(span)}")  # noqa: S608 - our names and numbers
    wait, run = (
        DurationPercentiles(
            **dict(zip(("p50", "p95", "p99"), row[name] or [None] * 3, strict=True)),
            longest=row[f"{name}_max"],
        )
        for name in ("wait_ms", "run_ms")
    )
    return PeriodFigures(
        begin=begin,
        end=end,
        attempts=sum(row["attempts"] for row in its),
        failures=sum(row[kind] for row in its for kind in FAILURE_ENDS),
        wait=wait,
        run=run,
        backlog=its[-1]["backlog_due"] if has_last else 0,
    )


def _group_attempts(
    reader: HistoryReader, span: tuple[int, int], expression: str
) -> tuple[GroupSummary, ...]:
    """Return the groups of the attempts of a span, those with most attempts first."""
    failures = ", ".join(f"'{kind}'" for kind in FAILURE_ENDS)
    rows = reader.rows(
        f"SELECT {expression} AS name, count(*) AS attempts, "  # noqa: S608 - our names and numbers
        f'count(*) FILTER ("end" IN ({failures})) AS failures, '
        "count(*) FILTER (\"end\" = 'stalled') AS stalled, quantile_disc(wait_ms, 0.95) AS wait_p95_ms, "
        "sum(run_ms)::BIGINT AS run_ms, max(run_ms) AS longest_run_ms, "
        f"epoch_ms(max(finished_at)) AS last_end FROM {_in(span)} AND name IS NOT NULL "
        "GROUP BY name ORDER BY attempts DESC, name"
    )
    return tuple(GroupSummary(**row) for row in rows)


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
    """Return the sum of a column, divided by the minutes of a step, rounded to four digits for a chart."""
    total: float = sum(row[name] for row in rows)
    return round(total * MINUTE / step, 4)
