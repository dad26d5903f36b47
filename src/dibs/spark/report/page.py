"""The report as one HTML page. Styles, script and data are all in it, so a browser loads no other file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

import msgspec

from dibs.spark.report.activity_cards import render_heat_map, render_workers
from dibs.spark.report.banners import clip, format_minute, render_banners
from dibs.spark.report.capacity import CapacityAdvice
from dibs.spark.report.charts import Chart, ChartLine, draw_chart, format_ms
from dibs.spark.report.id_tables import render_ids
from dibs.spark.report.latest_runs import RUNS_PER_ID, TRACEBACK_LENGTH
from dibs.spark.report.overview import MAX_LISTED_QUEUES, render_overview
from dibs.spark.report.summary import (
    MAX_CHARTED_QUEUES,
    MAX_POINTS,
    TOP_IDS,
    HistoryReport,
    QueueSummary,
    Series,
)

_ASSETS: Final = Path(__file__).parent / "assets"

_CHARTS: Final = (
    Chart(
        title="Attempts that ended, and jobs that arrived, per minute",
        unit="",
        lines=(
            ChartLine(label="completed", colour="green", names=("completed",), is_area=True),
            ChartLine(label="retried", colour="orange", names=("retried",), is_area=True),
            ChartLine(label="failed", colour="red", names=("failed",), is_area=True),
            ChartLine(
                label="stalled, timed out", colour="violet", names=("stalled", "timed_out"), is_area=True
            ),
            ChartLine(
                label="cancelled, released", colour="grey", names=("cancelled", "released"), is_area=True
            ),
            ChartLine(label="arrivals", colour="blue", names=("arrivals",)),
        ),
    ),
    Chart(
        title="Backlog: jobs due and not claimed as a minute ended",
        unit="",
        lines=(ChartLine(label="due", colour="orange", names=("backlog_due",), is_area=True),),
    ),
    Chart(
        title="Wait, from due to claimed",
        unit="ms",
        is_logarithmic=True,
        lines=(
            ChartLine(label="p99", colour="red", names=("wait_p99_ms",)),
            ChartLine(label="p95", colour="orange", names=("wait_p95_ms",)),
            ChartLine(label="p50", colour="green", names=("wait_p50_ms",)),
        ),
    ),
    Chart(
        title="Run, from claimed to ended",
        unit="ms",
        is_logarithmic=True,
        lines=(
            ChartLine(label="p99", colour="red", names=("run_p99_ms",)),
            ChartLine(label="p95", colour="orange", names=("run_p95_ms",)),
            ChartLine(label="p50", colour="green", names=("run_p50_ms",)),
        ),
    ),
    Chart(
        title="Active runs, on average and at most at once",
        unit="",
        lines=(
            ChartLine(label="on average", colour="blue", names=("active",), is_area=True),
            ChartLine(label="at most", colour="violet", names=("active_peak",)),
        ),
    ),
)


def render_page(report: HistoryReport, series: dict[str, Series], *, refresh: float | None = None) -> str:
    """Return the HTML page of a report. `refresh` is the number of seconds after which it reloads itself."""
    shown = report.queues[:MAX_CHARTED_QUEUES]
    charted = {queue.queue: series[queue.queue] for queue in shown}
    sections = (
        _render_queue(queue, series[queue.queue], report, f"q{index}") for index, queue in enumerate(shown)
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


def _failure_rate(queue: QueueSummary) -> str:
    return f"{queue.failures / queue.attempts:.1%}" if queue.attempts else "none"


def _render_queue(queue: QueueSummary, series: Series, report: HistoryReport, anchor: str) -> str:
    outages = [(outage.begin, outage.end) for outage in report.outages if queue.queue in outage.queues]
    charts = (
        f'<div class="card{"" if index else " wide"}">{draw_chart(chart, queue.queue, series, outages)}</div>'
        for index, chart in enumerate(_CHARTS)
    )
    return (
        f'<section id="{anchor}" data-queue="{escape(queue.queue)}"><h2>{clip(queue.queue)}</h2>'
        f'<p class="soft"><a href="#overview">All queues</a> &middot; {format_minute(queue.begin)} to '
        f"{format_minute(queue.end)} UTC</p>{_render_tiles(queue)}"
        f'<div class="grid">{"".join(charts)}{render_heat_map(queue)}{_render_errors(queue)}'
        f"{_render_capacity(queue.capacity)}"
        f"{render_workers(queue)}{render_ids(queue, anchor)}</div>{_render_notes(queue)}</section>"
    )


def _render_tiles(queue: QueueSummary) -> str:
    tiles = (
        (f"{queue.attempts:,}", "attempts ended"),
        (f"{queue.ends['completed']:,}", "completed"),
        (_failure_rate(queue), "of attempts failed, retried, stalled or timed out"),
        (format_ms(queue.wait.p95), f"wait, p95; p50 is {format_ms(queue.wait.p50)}"),
        (format_ms(queue.run.p95), f"run, p95; p50 is {format_ms(queue.run.p50)}"),
        (f"{queue.backlog_peak:,}", f"most jobs due at once; {queue.backlog_now:,} waiting now"),
    )
    shown = (f'<div class="tile"><b>{big}</b><span class="soft">{small}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>'


def _render_errors(queue: QueueSummary) -> str:
    most = max(queue.errors.values(), default=1)
    rows = (
        f'<tr><td class="id">{clip(name)}</td><td class="n">{count:,}</td>'
        f'<td><div class="bar"><i style="width:{100 * count / most:.1f}%"></i></div></td></tr>'
        for name, count in list(queue.errors.items())[:12]
    )
    content = f"<table>{''.join(rows)}</table>" if queue.errors else "<p>No attempt ended with an error.</p>"
    return f'<div class="card"><h3>Attempts that ended with an error, by its class</h3>{content}</div>'


def _render_capacity(advice: CapacityAdvice | None) -> str:
    if advice is None:
        return ""
    target = format_ms(advice.target_wait_p95_ms)
    hour = f"{format_minute(advice.begin)} to {format_minute(advice.end)[-5:]}"
    size = (
        "at the default size of 10 (name the application to use the sizes of its handlers)"
        if advice.size is None
        else f"at the declared size of {advice.size}"
    )
    answer = (
        f"With <b>{_format_count(advice.slots, 'concurrent run')}</b>, 95 of 100 waits would have been "
        f"at most {target}: {advice.units:,} capacity units {size}, "
        f"or {_format_count(advice.processes, 'worker process')} that serve only this queue."
        if advice.slots is not None
        else f"With no number of workers would 95 of 100 waits have been at most {target}."
    )
    rows = "".join(
        f'<tr><td class="n">{slots:,}</td><td class="n">{format_ms(wait)}</td></tr>'
        for slots, wait in advice.curve
    )
    return (
        f'<div class="card"><h3>Capacity</h3><p>{answer}</p><p class="soft">A simulation of the busiest '
        f"hour, {hour}, with the due and run times of its {advice.attempts:,} attempts. In the whole "
        f"history, at most {advice.seen_slots:,} runs were active at once.</p>"
        f'<table><tr><th class="n">concurrent runs</th><th class="n">wait, p95</th></tr>{rows}</table></div>'
    )


def _format_count(number: int | None, noun: str) -> str:
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {plural}"


def _render_notes(queue: QueueSummary) -> str:
    seconds = (queue.end - queue.begin) / 1000
    level = (
        "The log level is all: every enqueue is counted."
        if queue.level == "all"
        else "The log level is runs: arrivals count the jobs that ended or are live."
    )
    return (
        f'<p class="soft">{level} Little\'s law: {queue.little.active:.3f} runs were active on average, '
        f"counted minute by minute. {queue.attempts / seconds:.3f} attempts per second, multiplied by their "
        f"mean run time and with the runs still active, give {queue.little.expected:.3f}.</p>"
    )
