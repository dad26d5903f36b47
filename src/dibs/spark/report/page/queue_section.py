"""The section of a queue in a report: activity, capacity, charts and tables of ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from dibs.spark.report.figures.capacity import CapacityAdvice
from dibs.spark.report.figures.findings import FAILURE_ENDS
from dibs.spark.report.figures.ids import RUNS_PER_ID, IdSummary, RunSummary, TopIds
from dibs.spark.report.figures.periods import MAX_WORKERS, RangeFigures, Series
from dibs.spark.report.figures.summary import HistoryReport, QueueSummary
from dibs.spark.report.page.banners import clip, format_minute, format_second, render_labels
from dibs.spark.report.page.charts import Chart, ChartLine, draw_chart, format_ms

_ACTIVITY_COLUMNS = ("attempts", "failures", "stalled", "mean run", "longest run", "run in all", "latest end")


def render_heat_map(figures: RangeFigures) -> str:
    """Return a grid with a row for each day and a cell for each hour, with more colour for more starts."""
    most = max((count for day in figures.starts for count in day.hours), default=0) or 1
    hours = "".join(f"<span>{hour if hour % 3 == 0 else ''}</span>" for hour in range(24))
    rows = []
    for day in figures.starts:
        date = datetime.fromtimestamp(day.day / 1000, UTC)
        cells = "".join(
            f'<i style="--part:{100 * (count / most) ** 0.5:.0f}%" '
            f'title="{date:%Y-%m-%d} {hour:02}:00: {count:,} starts"></i>'
            for hour, count in enumerate(day.hours)
        )
        rows.append(f"<span>{date:%d %b}</span>{cells}")
    return (
        '<div class="card wide"><h3>Starts by hour (UTC)</h3><div class="heat" role="img" '
        f'aria-label="Starts by day and hour">{"".join(rows)}<span></span>{hours}</div>'
        f'<p class="soft">The fullest hour has {most:,} starts.</p></div>'
    )


def render_workers(figures: RangeFigures) -> str:
    """Return the table of the workers with most attempts."""
    if not figures.workers:
        return ""
    head = "".join(f'<th class="n">{name}</th>' for name in _ACTIVITY_COLUMNS)
    rows = []
    for worker in figures.workers:
        mean = worker.run_ms / worker.attempts if worker.attempts else None
        values = (
            f"{worker.attempts:,}", f"{worker.failures:,}", f"{worker.stalled:,}", format_ms(mean),
            format_ms(worker.longest_run_ms), format_ms(worker.run_ms), format_minute(worker.last_end),
        )  # fmt: skip
        cells = "".join(
            f'<td class="n{" whole" if label == "latest end" else ""}" data-label="{label}">{value}</td>'
            for label, value in zip(_ACTIVITY_COLUMNS, values, strict=True)
        )
        rows.append(f'<tr><td class="id name">{clip(worker.holder)}</td>{cells}</tr>')
    left = figures.worker_count - len(figures.workers)
    more = f'<p class="soft">{left:,} more workers had fewer attempts.</p>' if left else ""
    return (
        f'<div class="card wide"><h3>Workers, the {MAX_WORKERS} with most attempts</h3>'
        f'<table class="cards"><thead><tr><th>worker</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        f"</table>{more}</div>"
    )


_ID_COLUMNS = ("attempts", "failures", "merged", "longest wait", "longest run", "run in all")


def render_ids(ids: TopIds, links: Mapping[str, str]) -> str:
    """Return the tables of ids of one range. `links` has the fold of each id with runs."""
    failing = _render_table("Ids with most failures", ids.failing, links) if ids.failing else ""
    return (
        f"{failing}{_render_table('Slowest ids, by their longest run', ids.slowest, links)}"
        f"{_render_table('Most active ids, by attempts', ids.hottest, links)}"
    )


def render_runs(queue: QueueSummary, links: Mapping[str, str]) -> str:
    """Return a fold with the latest runs of each id in `links`, which the tables of all ranges link to."""
    runs = "".join(_render_fold(id, links[id], runs) for id, runs in queue.runs.items() if runs)
    title = f"Latest {RUNS_PER_ID} runs of each listed id, at any time ({len(queue.runs)} ids)"
    fold = f"<details><summary>{title}</summary>{runs}</details>"
    return f'<div class="card wide runs">{fold}</div>' if runs else ""


def _render_table(title: str, rows: Sequence[IdSummary], links: Mapping[str, str]) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in _ID_COLUMNS)
    body = "".join(_render_row(row, links) for row in rows)
    return (
        f'<div class="card wide"><h3>{title}</h3><table class="cards"><thead><tr><th>id</th>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _render_row(row: IdSummary, links: Mapping[str, str]) -> str:
    name = clip(row.id)
    if row.id in links:
        name = f'<a href="#{links[row.id]}">{name}</a>'
    times = (format_ms(ms) for ms in (row.longest_wait_ms, row.longest_run_ms, row.run_ms))
    values = (f"{row.attempts:,}", f"{row.failures:,}", f"{row.merged:,}", *times)
    cells = "".join(
        f'<td class="n" data-label="{label}">{value}</td>'
        for label, value in zip(_ID_COLUMNS, values, strict=True)
    )
    return f'<tr><td class="id name">{name}</td>{cells}</tr>'


def _render_fold(id: str, link: str, runs: Sequence[RunSummary]) -> str:
    return (
        f'<details id="{link}"><summary>{clip(id)}</summary>{"".join(_render_run(run) for run in runs)}'
        "</details>"
    )


def _render_run(run: RunSummary) -> str:
    attempt = f", attempt {run.attempt}" if run.attempt else ""
    worker = f" by {clip(run.holder)}" if run.holder else ""
    error = ""
    if run.error_type or run.error_message:
        message = f": {escape(run.error_message)}" if run.error_message else ""
        error = f'<div class="error">{clip(run.error_type or "error", "b")}{message}</div>'
    trace = ""
    if run.error_traceback:
        trace = f"<details><summary>traceback</summary><pre>{escape(run.error_traceback)}</pre></details>"
    return (
        f'<div class="run"><b>{run.end.replace("_", " ")}</b> at {format_second(run.finished_at)}{attempt}: '
        f"waited {format_ms(run.wait_ms)}, ran {format_ms(run.run_ms)}{worker}{error}{trace}</div>"
    )


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
        "at size 10, the default of a def (name the application to use the sizes of its handlers)"
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
