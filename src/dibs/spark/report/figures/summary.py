"""The report of a warehouse as values, and its computation.

No storage counts the events that it trims. Their number does not follow from the offsets either: each
storage draws the numbers of log entries from the counter of revisions and fences, which is at least its time
in us, and an entry has any number of events. The warehouse knows the period: from the last event that was
read to the first event after it. The number is estimated by the attempts of the hours around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from attrs import field, frozen
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.requests import StartRate
from dibs.spark.history.warehouse import LogGap, Warehouse
from dibs.spark.report.figures.capacity import CapacityAdvice, advise, busiest_hour
from dibs.spark.report.figures.findings import (
    FAILURE_ENDS,
    MINUTE,
    Outage,
    PoisonId,
    find_outages,
    merge_outages,
)
from dibs.spark.report.figures.ids import IdSummary, RunSummary, latest_runs, poison_ids
from dibs.spark.report.figures.periods import (
    HOUR,
    DayStarts,
    DurationPercentiles,
    GroupSummary,
    RangeFigures,
    Series,
    View,
    chart_series,
    summarize_ranges,
)
from dibs.spark.report.figures.reader import HistoryReader


class TrimmedPeriod(Struct, frozen=True, kw_only=True):
    """A period of a queue whose events were trimmed unread. Times are ms since the epoch."""

    queue: str
    #: Newest time in all tables at the increment before.
    at: int
    #: Time of the last event of the queue that was read before; None without one.
    begin: int | None = None
    #: Time of the first event of the queue after the period; None without one.
    end: int | None = None
    #: Attempts that ended in the period, by the rate of the hour before it and the hour after it. None if the
    #: period is open.
    estimated_attempts: int | None = None


def find_trimmed_periods(reader: HistoryReader, gaps: Iterable[LogGap]) -> Iterator[TrimmedPeriod]:
    """Yield the period of each gap, from the times of the events around it."""
    for gap in gaps:
        [row] = reader.rows(
            "SELECT epoch_ms(max(e.at) FILTER (epoch_ms(e.at) <= $at)) AS last, "
            "epoch_ms(min(e.at) FILTER (epoch_ms(e.at) > $at)) AS first FROM events e WHERE queue = $queue",
            at=gap.at,
            queue=gap.queue,
        )
        begin, end = row["last"], row["first"]
        estimate = None if begin is None or end is None else _estimate(reader, gap.queue, begin, end)
        yield TrimmedPeriod(queue=gap.queue, at=gap.at, begin=begin, end=end, estimated_attempts=estimate)


def _estimate(reader: HistoryReader, queue: str, begin: int, end: int) -> int:
    """Return the attempts that a period would have at the mean rate of the hours around it.

    An hour counts as far as the history has it.
    """
    minutes = reader.minutes(queue)
    first, last = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    before = range(max(first, begin - HOUR), begin + 1)
    after = range(end // MINUTE * MINUTE, min(last, end + HOUR))
    attempts: int = sum(
        row["attempts"] for row in minutes if row["minute"] in before or row["minute"] in after
    )
    return round(attempts * (end - begin) / max(MINUTE, len(before) + len(after)))


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
    """The figures of one queue over the whole window."""

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
    #: Figures of the last hour, day and week, and of the whole window, in this order.
    ranges: tuple[RangeFigures, ...]
    #: Starts by hour on the latest days.
    starts: tuple[DayStarts, ...]
    #: The workers with most attempts, and the number of all workers that had an attempt.
    workers: tuple[GroupSummary, ...]
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
    generation: int
    #: The window: the first and the last minute of the history in it.
    begin: int
    end: int
    #: Time zone of the days and of the times on the page.
    zone: str
    #: Name of the groups in the ranges, as `key` or `attributes.customer`; "" for a report without groups.
    by: str
    #: Share of the attempts that shall not fail, or None: the page then shows no burn rate.
    objective: float | None
    queues: tuple[QueueSummary, ...]
    outages: tuple[Outage, ...]
    poisons: tuple[PoisonId, ...]
    gaps: tuple[TrimmedPeriod, ...]


#: Length of the window of a report that names none. So its cost does not grow with the history, and each week
#: has the one before it to compare with.
WINDOW_MS: Final = 28 * 24 * HOUR
#: Groups of attempts -> their expression on `runs`. `attributes.NAME` is the attribute NAME.
GROUPS: Final = {"": "", "key": "key", "flow": "flow", "error": "error_type"}
#: Number of ids that are listed as failing nearly every time.
MAX_POISON_IDS: Final = 100
TARGET_WAIT_P95_MS: Final = 1_000


@frozen(kw_only=True)
class ReportOptions:
    """The options of a report. Raise Refused for an unknown time zone or group, and a wrong objective."""

    target_wait_p95_ms: int = TARGET_WAIT_P95_MS
    #: Queue -> the capacity units of a run, as handlers declare them (`app.handlers.sizes()`).
    sizes: Mapping[str, int] = field(factory=dict)
    #: Without it, the runs have no messages and tracebacks, which may quote data of jobs.
    with_error_texts: bool = True
    #: First and last time of the window, ms since the epoch, in whole minutes. By default it ends with the
    #: history, and has WINDOW_MS.
    since: int | None = None
    until: int | None = None
    #: Name of the time zone of the page, such as Europe/Berlin.
    zone: str = "UTC"
    #: Groups of attempts that the page compares: key, flow, error, or attributes.NAME.
    by: str = ""
    #: Share of the attempts that shall not fail, above 0 and below 1; None for no burn rate.
    objective: float | None = None

    def __attrs_post_init__(self) -> None:
        load_zone(self.zone)
        group_expression(self.by)
        if self.objective is not None and not 0 < self.objective < 1:
            raise Refused(
                f"objective is {self.objective:g}; write a share above 0 and below 1, as in 0.999",
                field="objective",
            )


def load_zone(name: str) -> ZoneInfo:
    """Return a time zone. Raise Refused for a name that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Refused(
            f"tz is {name!r:.60}, which is no known time zone; write one as Europe/Berlin", field="tz"
        ) from error


def group_expression(by: str) -> str:
    """Return the expression on `runs` for groups of attempts. Raise Refused for unknown groups."""
    kind, _, name = by.partition(".")
    if by in GROUPS:
        return GROUPS[by]
    if kind == "attributes" and name:
        return "attributes['{}']".format(name.replace("'", "''"))
    raise Refused(
        f"by is {by!r:.60}; write key, flow, error, or attributes.NAME for a collected attribute",
        field="by",
    )


def create_report(
    root: str | Path, options: ReportOptions | None = None
) -> tuple[HistoryReport, dict[str, dict[str, Series]]]:
    """Return the report of a warehouse, and queue -> range -> the series of its charts.

    Raise Refused if the folder has no warehouse, and StorageTooNew for a warehouse that a newer dibs has
    written.
    """
    warehouse, options = Warehouse(root), options or ReportOptions()
    end = warehouse.state.horizon + 1 if options.until is None else options.until
    since = end - WINDOW_MS if options.since is None else options.since
    until = None if options.until is None else options.until // MINUTE * MINUTE
    with closing(HistoryReader(warehouse, since // MINUTE * MINUTE, until)) as reader:
        return _create_report(reader, warehouse, options)


def _create_report(
    reader: HistoryReader, warehouse: Warehouse, options: ReportOptions
) -> tuple[HistoryReport, dict[str, dict[str, Series]]]:
    last = reader.last_minute()
    end = 0 if last is None else last + MINUTE
    queues, outages, poisons, series = [], [], [], {}
    for name in reader.queues():
        minutes = reader.minutes(name)
        reader.select(name)
        summary = _summarize_queue(reader, name, minutes, end, options)
        rate = warehouse.state.rates.get(name)
        limits = options.sizes.get(name), rate
        capacity = _advise_capacity(reader, summary, minutes, options.target_wait_p95_ms, limits)
        queues.append(replace(summary, capacity=capacity))
        outages += find_outages(name, minutes, summary.run.p95 or 0, rate)
        poisons += poison_ids(reader, name, summary.failures)
        series[name] = chart_series(minutes, end)
    figures = HistoryReport(
        source=warehouse.state.source,
        generation=warehouse.generation,
        begin=min((queue.begin for queue in queues), default=0),
        end=end,
        zone=options.zone,
        by=options.by,
        objective=options.objective,
        queues=tuple(_with_latest_runs(reader, queues, end, with_error_texts=options.with_error_texts)),
        outages=tuple(merge_outages(outages)),
        poisons=tuple(sorted(poisons, key=lambda poison: -sum(poison.bad.values()))[:MAX_POISON_IDS]),
        gaps=tuple(find_trimmed_periods(reader, warehouse.state.gaps)),
    )
    return figures, series


def _with_latest_runs(
    reader: HistoryReader, queues: Iterable[QueueSummary], end: int, *, with_error_texts: bool
) -> Iterator[QueueSummary]:
    """Yield the queues, those with most attempts first; the first MAX_CHARTED_QUEUES with runs."""
    ordered = sorted(queues, key=lambda queue: (-queue.attempts, queue.queue))
    for queue in ordered[:MAX_CHARTED_QUEUES]:
        runs = latest_runs(reader, queue.queue, queue.listed_ids, end, with_error_texts=with_error_texts)
        yield replace(queue, runs=runs)
    yield from ordered[MAX_CHARTED_QUEUES:]


def _summarize_queue(
    reader: HistoryReader,
    queue: str,
    minutes: Sequence[Mapping[str, Any]],
    last: int,
    options: ReportOptions,
) -> QueueSummary:
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    view = View(begin=begin, end=last, zone=load_zone(options.zone), group=group_expression(options.by))
    ranges = summarize_ranges(reader, minutes, view)
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
        little=_check_littles_law(reader, queue, minutes),
        errors=whole.errors,
        slowest=whole.ids.slowest,
        hottest=whole.ids.hottest,
        failing=whole.ids.failing,
        starts=whole.starts,
        workers=whole.workers,
        worker_count=whole.worker_count,
        ranges=ranges,
    )


def _check_littles_law(reader: HistoryReader, queue: str, minutes: Sequence[Mapping[str, Any]]) -> LittlesLaw:
    begin, end = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    by_minute = round(sum(row["active"] * MINUTE for row in minutes))
    # Of a run that began before the window or ended after it, the part inside counts.
    spans = (
        "SELECT epoch_ms(claimed_at) AS claimed, epoch_ms(finished_at) AS finished FROM its_runs UNION ALL "
        "SELECT epoch_ms(claimed_at), $end FROM live WHERE queue = $queue AND claimed_at IS NOT NULL"
    )
    [row] = reader.rows(
        f"SELECT coalesce(sum(least(finished, $end) - greatest(claimed, $begin)), 0)::BIGINT AS ms "  # noqa: S608
        f"FROM ({spans}) WHERE claimed < $end AND finished >= $begin",
        begin=begin,
        end=end,
        queue=queue,
    )
    length = end - begin
    return LittlesLaw(active=by_minute / length, expected=row["ms"] / length, agree=by_minute == row["ms"])


def _advise_capacity(
    reader: HistoryReader,
    queue: QueueSummary,
    minutes: Sequence[Mapping[str, Any]],
    target_ms: int,
    limits: tuple[int | None, StartRate | None],
) -> CapacityAdvice | None:
    """Return the advice. `limits` are the size of a run, and the limit of the queue on starts."""
    begin, end = busiest_hour(minutes)
    rows = reader.rows(
        "SELECT epoch_ms(due_at) AS due, run_ms FROM its_runs WHERE epoch_ms(due_at) >= $begin "
        "AND epoch_ms(due_at) < $end",
        begin=begin,
        end=end,
    )
    attempts = [(row["due"], row["run_ms"]) for row in rows]
    return advise(attempts, (begin, end), target_ms, queue.active_peak, *limits)
