"""The page of a report: its overview, one section for each queue, styles and scripts.

An element with the class `only` is shown while one of its other classes names the chosen range.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Final

import msgspec

from dibs.spark.report.figures.ids import RUNS_PER_ID, TOP_IDS, TRACEBACK_LENGTH
from dibs.spark.report.figures.periods import MAX_POINTS, PeriodFigures, RangeFigures, Series
from dibs.spark.report.figures.summary import MAX_CHARTED_QUEUES, HistoryReport, QueueSummary
from dibs.spark.report.page.banners import LABELS, clip, format_minute, render_banners
from dibs.spark.report.page.charts import draw_sparkline, format_ms
from dibs.spark.report.page.queue_section import render_queue


def render_choice(report: HistoryReport) -> str:
    """Return the radio buttons with their labels."""
    chosen = "day" if report.end - report.begin > 24 * 3_600_000 else "all"
    return "".join(
        f'<input type="radio" name="range" id="range-{name}"{" checked" if name == chosen else ""}>'
        f'<label for="range-{name}">{label}</label>'
        for name, label in LABELS.items()
    )


#: Maximum number of queues in the overview, those with most attempts first. The JSON has all queues.
MAX_LISTED_QUEUES: Final = 200
_COLUMNS: Final = (
    "runs", "failures", "wait p50", "wait p95", "run p50", "run p95", "backlog",
)  # fmt: skip


def render_overview(report: HistoryReport) -> str:
    """Return the overview, with the radio buttons that choose the range of the whole page."""
    if not report.queues:
        return ""
    tables = "".join(_render_range(report, index) for index, _ in enumerate(LABELS))
    left_out = len(report.queues) - MAX_LISTED_QUEUES
    more = (
        f'<p class="soft">{left_out:,} queues with fewer attempts are in the JSON only.</p>'
        if left_out > 0
        else ""
    )
    return (
        f'<div class="overview" id="overview"><h2>All queues</h2>'
        f'<div class="choice">{render_choice(report)}</div>{tables}'
        f"{more}</div>"
    )


def _render_range(report: HistoryReport, index: int) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
    listed = report.queues[:MAX_LISTED_QUEUES]
    rows = "".join(
        _render_row(queue, queue.ranges[index], place, _mark(queue, report))
        for place, queue in enumerate(listed)
    )
    first = report.queues[0].ranges[index]
    since = report.begin if first.name == "all" else first.last.begin
    was = "" if first.name == "all" else " The small figures are those of the period before."
    return (
        f'<div class="card only {first.name}"><p class="soft">{format_minute(since)} to '
        f"{format_minute(report.end)} UTC.{was}</p>"
        f'<table class="cards"><thead><tr><th>queue</th><th>starts</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _render_row(queue: QueueSummary, figures: RangeFigures, place: int, mark: str) -> str:
    name = clip(queue.queue)
    if place < MAX_CHARTED_QUEUES:
        name = f'<a href="#q{place}">{name}</a>'
    return (
        f'<tr><th class="name" scope="row">{name}{mark}</th><td class="starts">'
        f"{draw_sparkline(figures.claims)}</td>{_render_cells(figures)}</tr>"
    )


def _render_cells(figures: RangeFigures) -> str:
    before = _texts(figures.before) if figures.before else ("",) * len(_COLUMNS)
    cells = zip(_COLUMNS, _texts(figures.last), before, strict=True)
    return "".join(
        f'<td class="n" data-label="{escape(label)}"><span>{now}'
        f"{f'<small>was {was}</small>' if was else ''}</span></td>"
        for label, now, was in cells
    )


def _texts(period: PeriodFigures) -> tuple[str, ...]:
    share = f" ({period.failures / period.attempts:.1%})" if period.failures and period.attempts else ""
    times = (period.wait.p50, period.wait.p95, period.run.p50, period.run.p95)
    return (
        f"{period.attempts:,}",
        f"{period.failures:,}{share}",
        *("–" if ms is None else format_ms(ms) for ms in times),  # noqa: RUF001 - a dash for no value
        f"{period.backlog:,}",
    )


def _mark(queue: QueueSummary, report: HistoryReport) -> str:
    """Return a red point if a banner is about the queue."""
    has_finding = any(queue.queue in outage.queues for outage in report.outages) or any(
        queue.queue == poison.queue for poison in report.poisons
    )
    return '<i class="mark" title="has a finding"></i>' if has_finding else ""


_ASSETS: Final = files(__package__) / "assets"


def render_page(
    report: HistoryReport, series: dict[str, dict[str, Series]], *, refresh: float | None = None
) -> str:
    """Return the HTML page of a report. `refresh` is the number of seconds after which it reloads itself."""
    shown = report.queues[:MAX_CHARTED_QUEUES]
    charted = {queue.queue: series[queue.queue] for queue in shown}
    sections = (
        render_queue(queue, series[queue.queue], report, f"q{index}") for index, queue in enumerate(shown)
    )
    title = f"History of {report.source}"
    return _FRAME.format(
        title=escape(title),
        style=_read_asset("report.css"),
        script=_read_asset("report.js"),
        # Escape `<`: an id that contains a closing script tag would end the element.
        series=msgspec.json.encode(charted).decode().replace("<", "\\u003c"),
        span=(
            f"{format_minute(report.begin)} to {format_minute(report.end)} UTC, "
            f"generation {report.generation}"
        ),
        findings=render_banners(report),
        overview=render_overview(report),
        sections="".join(sections),
        bounds=_BOUNDS,
        refresh="" if refresh is None else f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">',
    )


def _read_asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


_BOUNDS: Final = (
    f"Bounds of this page: {MAX_LISTED_QUEUES} queues in the overview; charts, ids and runs of the "
    f"{MAX_CHARTED_QUEUES} queues with most attempts, with at most {MAX_POINTS} points a line, {TOP_IDS} ids "
    f"a table, {RUNS_PER_ID} runs an id and the last {TRACEBACK_LENGTH:,} characters of a traceback. "
    "dibs spark report --json has the figures of all queues."
)

_FRAME: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
{refresh}
<title>{title}</title>
<style>{style}</style>
<header><h1 class="clip" title="{title}">{title}</h1><span class="soft">{span}</span>
<button id="theme" type="button">light / dark</button></header>
{findings}
{overview}
{sections}
<p class="soft">{bounds}</p>
<div id="tip"></div>
<script type="application/json" id="series">{series}</script>
<script>{script}</script>
</html>
"""
