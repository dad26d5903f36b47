"""The part of the page about one queue: its figures, charts, workers and ids in each range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from dibs.spark.report.figures.capacity import CapacityAdvice
from dibs.spark.report.figures.findings import FAILURE_ENDS
from dibs.spark.report.figures.periods import RangeFigures
from dibs.spark.report.figures.series import Series
from dibs.spark.report.figures.summary import HistoryReport, QueueSummary
from dibs.spark.report.page.activity_cards import render_heat_map, render_workers
from dibs.spark.report.page.banners import clip, format_minute
from dibs.spark.report.page.charts import Chart, ChartLine, draw_chart, format_ms
from dibs.spark.report.page.id_tables import render_ids, render_runs
from dibs.spark.report.page.ranges import render_labels

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


def render_queue(
    queue: QueueSummary, series: Mapping[str, Series], report: HistoryReport, anchor: str
) -> str:
    """Return the section of a queue. `anchor` is its id in the page."""
    outages = [(outage.begin, outage.end) for outage in report.outages if queue.queue in outage.queues]
    links = {id: f"{anchor}-{index}" for index, id in enumerate(queue.runs)}
    blocks = (
        f'<div class="only {" ".join(names)}">'
        f"{_render_range(queue, figures, series[figures.name], outages, links)}</div>"
        for names, figures in _distinct_ranges(queue, series)
    )
    return (
        f'<section id="{anchor}" data-queue="{escape(queue.queue)}"><h2>{clip(queue.queue)}</h2>'
        f'<p class="soft"><a href="#overview">All queues</a> &middot; {format_minute(queue.begin)} to '
        f'{format_minute(queue.end)} UTC</p><p class="choice">{render_labels()}</p>{"".join(blocks)}'
        f'<div class="grid">{render_runs(queue, links)}{_render_capacity(queue.capacity)}</div>'
        f"{_render_notes(queue)}</section>"
    )


def _distinct_ranges(
    queue: QueueSummary, series: Mapping[str, Series]
) -> Iterator[tuple[list[str], RangeFigures]]:
    """Yield the ranges with different figures; those longer than the history are `all`."""
    yield from (([figures.name], figures) for figures in queue.ranges[:-1] if figures.name in series)
    longer = [figures.name for figures in queue.ranges if figures.name not in series]
    yield [*longer, "all"], queue.ranges[-1]


def _render_range(
    queue: QueueSummary,
    figures: RangeFigures,
    series: Series,
    outages: Sequence[tuple[int, int]],
    links: Mapping[str, str],
) -> str:
    if not figures.last.attempts and not any(figures.claims) and not figures.backlog_peak:
        return '<div class="card">No job was due, claimed or ended in this period.</div>'
    place = (queue.queue, figures.name)
    charts = (
        f'<div class="card{"" if index else " wide"}">{draw_chart(chart, place, series, outages)}</div>'
        for index, chart in enumerate(_CHARTS)
    )
    return (
        f'{_render_tiles(queue, figures)}<div class="grid">{"".join(charts)}{render_heat_map(figures)}'
        f"{_render_errors(figures)}{render_workers(figures)}{render_ids(figures.ids, links)}</div>"
    )


def _failure_rate(attempts: int, ends: Mapping[str, int]) -> str:
    return f"{sum(ends[end] for end in FAILURE_ENDS) / attempts:.1%}" if attempts else "none"


def _render_tiles(queue: QueueSummary, figures: RangeFigures) -> str:
    last, ends = figures.last, figures.ends
    tiles = (
        (f"{last.attempts:,}", "attempts ended"),
        (f"{ends['completed']:,}", "completed"),
        (_failure_rate(last.attempts, ends), "of attempts failed, retried, stalled or timed out"),
        (format_ms(last.wait.p95), f"wait, p95; p50 is {format_ms(last.wait.p50)}"),
        (format_ms(last.run.p95), f"run, p95; p50 is {format_ms(last.run.p50)}"),
        (f"{figures.backlog_peak:,}", f"most jobs due at once; {queue.backlog_now:,} waiting now"),
    )
    shown = (f'<div class="tile"><b>{big}</b><span class="soft">{small}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>'


def _render_errors(figures: RangeFigures) -> str:
    most = max(figures.errors.values(), default=1)
    rows = (
        f'<tr><td class="id">{clip(name)}</td><td class="n">{count:,}</td>'
        f'<td><div class="bar"><i style="width:{100 * count / most:.1f}%"></i></div></td></tr>'
        for name, count in list(figures.errors.items())[:12]
    )
    content = (
        f"<table>{''.join(rows)}</table>" if figures.errors else "<p>No attempt ended with an error.</p>"
    )
    return f'<div class="card wide"><h3>Attempts that ended with an error, by its class</h3>{content}</div>'


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
        f"or {_format_count(advice.processes, 'worker process')} for this queue alone."
        if advice.slots is not None
        else f"With no number of workers would 95 of 100 waits have been at most {target}."
    )
    rows = "".join(
        f'<tr><td class="n">{slots:,}</td><td class="n">{format_ms(wait)}</td></tr>'
        for slots, wait in advice.curve
    )
    return (
        f'<div class="card wide"><h3>Capacity</h3><p>{answer}</p><p class="soft">A simulation of the busiest '
        f"hour, {hour}, with the due and run times of its {advice.attempts:,} attempts. In the whole "
        f"history, at most {_format_count(advice.seen_slots, 'run')} at once.</p>"
        f'<table class="narrow"><tr><th class="n">concurrent runs</th>'
        f'<th class="n">wait, p95</th></tr>{rows}</table></div>'
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
