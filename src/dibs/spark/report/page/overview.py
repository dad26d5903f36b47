"""The overview of all queues: a table for each range of time. The page shows one of them."""

from __future__ import annotations

from html import escape
from typing import Final

from dibs.spark.report.figures.periods import PeriodFigures, RangeFigures
from dibs.spark.report.figures.summary import MAX_CHARTED_QUEUES, HistoryReport, QueueSummary
from dibs.spark.report.page.banners import clip, format_minute
from dibs.spark.report.page.charts import draw_sparkline, format_ms
from dibs.spark.report.page.ranges import LABELS, render_choice

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
