"""The report as one HTML page. Styles, script and data are all in it, so a browser loads no other file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

import msgspec

from dibs.spark.report.figures.ids import TOP_IDS
from dibs.spark.report.figures.latest_runs import RUNS_PER_ID, TRACEBACK_LENGTH
from dibs.spark.report.figures.series import MAX_POINTS, Series
from dibs.spark.report.figures.summary import MAX_CHARTED_QUEUES, HistoryReport
from dibs.spark.report.page.banners import format_minute, render_banners
from dibs.spark.report.page.overview import MAX_LISTED_QUEUES, render_overview
from dibs.spark.report.page.queue_section import render_queue

_ASSETS: Final = Path(__file__).parent / "assets"


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
            f"generation {int(report.generation)}"
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
