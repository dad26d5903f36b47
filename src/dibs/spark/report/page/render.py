"""The page of a report: its overview, one section for each queue, styles and scripts.

An element with the class `only` is shown while one of its other classes names the chosen range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from dibs.spark.report.figures.findings import PoisonId
from dibs.spark.report.figures.ids import RUNS_PER_ID, TOP_IDS, TRACEBACK_LENGTH
from dibs.spark.report.figures.periods import MAX_GROUPS, MAX_POINTS, PeriodFigures, RangeFigures, Series
from dibs.spark.report.figures.summary import (
    MAX_CHARTED_QUEUES,
    HistoryReport,
    QueueSummary,
    TrimmedPeriod,
    load_zone,
)
from dibs.spark.report.page.charts import CHARTS, draw_chart, draw_sparkline, format_ms

#: Name of a range of time -> its label.
LABELS: Final = {"hour": "last hour", "day": "last day", "week": "last week", "all": "all"}
#: Banners that are shown; the others are folded.
MAX_OPEN: Final = 3
#: Outages or ids that a banner lists. The JSON has all.
MAX_LISTED: Final = 20
#: Maximum number of queues in the overview, those with most attempts first. The JSON has all queues.
MAX_LISTED_QUEUES: Final = 200
#: The columns of the overview after the name and the starts.
COLUMNS: Final = ("runs", "failures", "wait p50", "wait p95", "run p50", "run p95", "backlog")
BOUNDS: Final = {
    "open": MAX_OPEN,
    "listed": MAX_LISTED,
    "queues": MAX_LISTED_QUEUES,
    "charted": MAX_CHARTED_QUEUES,
    "groups": MAX_GROUPS,
    "points": MAX_POINTS,
    "ids": TOP_IDS,
    "runs": RUNS_PER_ID,
    "traceback": TRACEBACK_LENGTH,
}

FindingT = TypeVar("FindingT")


def render_page(
    report: HistoryReport, series: dict[str, dict[str, Series]], *, refresh: float | None = None
) -> str:
    """Return the HTML page of a report. `refresh` is the number of seconds after which it reloads itself."""
    charted = {queue.queue: series[queue.queue] for queue in report.queues[:MAX_CHARTED_QUEUES]}
    findings = list(_findings(report))
    # Escape `<`: an id that contains a closing script tag would end the element.
    encoded = msgspec.json.encode(charted).decode().replace("<", "\\u003c")
    return _template(load_zone(report.zone)).render(
        report=report,
        findings=findings,
        marked=_marked_queues(report),
        chosen="day" if report.end - report.begin > 24 * 3_600_000 else "all",
        charts=partial(_charts, report, series),
        ranges_of=lambda queue: _distinct_ranges(queue, series[queue.queue]),
        series=Markup(encoded),  # noqa: S704 - escaped above
        refresh=None if refresh is None else max(1, round(refresh)),
    )


def _template(zone: ZoneInfo) -> Template:
    environment = Environment(
        loader=PackageLoader(__package__ or ""),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "percent": lambda share, digits: f"{share:.{digits}%}",
        "ms": format_ms,
        "date": partial(format_time, zone),
        "minute": partial(format_time, zone, form="%Y-%m-%d %H:%M"),
        "second": partial(format_time, zone, form="%Y-%m-%d %H:%M:%S"),
        "failures": lambda poisons: sum(sum(poison.bad.values()) for poison in poisons),
        "main_error": _main_error,
        "loss": _describe_loss,
    }
    environment.globals |= {
        "style": Markup(_read_asset("report.css")),  # noqa: S704 - a file of this package
        "script": Markup(_read_asset("report.js")),  # noqa: S704 - a file of this package
        "labels": LABELS,
        "columns": COLUMNS,
        "most": BOUNDS,
        "texts_of": _texts,
        "sparkline": lambda values: Markup(draw_sparkline(values)),  # noqa: S704 - numbers only
        "links_of": lambda queue, anchor: {id: f"{anchor}-{n}" for n, id in enumerate(queue.runs)},
    }
    return environment.get_template("report.html")


def _read_asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def format_time(zone: ZoneInfo, at: int, form: str) -> str:
    """Return a time (ms since the epoch) of a time zone, in a form of strftime."""
    return datetime.fromtimestamp(at / 1000, zone).strftime(form)


def _findings(report: HistoryReport) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the findings that share a banner, each group with its kind: the alarms first, then the notes."""
    yield from (("outages", group) for group in _groups(report.outages, lambda outage: outage.queues))
    yield from (("poisons", group) for group in _groups(report.poisons, lambda poison: poison.queue))
    if report.gaps:
        yield "gaps", report.gaps
    if differing := [queue for queue in report.queues if not queue.little.agree]:
        yield "differing", differing


def _groups(findings: Iterable[FindingT], key: Callable[[FindingT], Hashable]) -> Iterable[list[FindingT]]:
    """Return the findings with equal keys together, in the order of the first ones."""
    groups: dict[Hashable, list[FindingT]] = {}
    for finding in findings:
        groups.setdefault(key(finding), []).append(finding)
    return groups.values()


def _marked_queues(report: HistoryReport) -> set[str]:
    """Return the queues that an alarm is about."""
    silent = {queue for outage in report.outages for queue in outage.queues}
    return silent | {poison.queue for poison in report.poisons}


def _main_error(poisons: Iterable[PoisonId]) -> str:
    errors = Counter[str]()
    for poison in poisons:
        if poison.error_type:
            errors[poison.error_type] += sum(poison.bad.values())
    return errors.most_common(1)[0][0] if errors else ""


def _describe_loss(gaps: Sequence[TrimmedPeriod]) -> str:
    """Return the estimated number of lost attempts, with the length of their periods."""
    closed = [gap for gap in gaps if gap.begin is not None and gap.end is not None]
    lost = sum(gap.estimated_attempts or 0 for gap in closed)
    if not lost:
        return "an unknown number of events was"
    length = format_ms(sum((gap.end or 0) - (gap.begin or 0) for gap in closed))
    return f"the events of about {lost:,} attempts in {length} (by the rate of the hours around) were"


def _distinct_ranges(
    queue: QueueSummary, series: dict[str, Series]
) -> Iterator[tuple[list[str], RangeFigures]]:
    """Yield the ranges with different figures; those longer than the history are `all`."""
    yield from (([figures.name], figures) for figures in queue.ranges[:-1] if figures.name in series)
    longer = [figures.name for figures in queue.ranges if figures.name not in series]
    yield [*longer, "all"], queue.ranges[-1]


def _charts(
    report: HistoryReport, series: dict[str, dict[str, Series]], queue: QueueSummary, name: str
) -> Iterator[Markup]:
    """Yield the charts of a queue in one range."""
    zone = load_zone(report.zone)
    outages = [(outage.begin, outage.end) for outage in report.outages if queue.queue in outage.queues]
    for chart in CHARTS:
        drawn = draw_chart(chart, (queue.queue, name), series[queue.queue][name], outages, zone)
        yield Markup(drawn)  # noqa: S704 - draw_chart escapes the names


def _texts(period: PeriodFigures) -> tuple[str, ...]:
    """Return the cells of a row of the overview, in the order of COLUMNS."""
    share = f" ({period.failures / period.attempts:.1%})" if period.failures and period.attempts else ""
    times = (period.wait.p50, period.wait.p95, period.run.p50, period.run.p95)
    return (
        f"{period.attempts:,}",
        f"{period.failures:,}{share}",
        *("–" if ms is None else format_ms(ms) for ms in times),  # noqa: RUF001 - a dash for no value
        f"{period.backlog:,}",
    )
