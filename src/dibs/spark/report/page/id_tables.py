"""The tables of ids of a queue, with links to the latest runs of each id and their tracebacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dibs.spark.report.figures.ids import IdSummary, TopIds
from dibs.spark.report.figures.latest_runs import RUNS_PER_ID, RunSummary
from dibs.spark.report.figures.summary import QueueSummary
from dibs.spark.report.page.banners import clip, format_second
from dibs.spark.report.page.charts import format_ms

_COLUMNS = ("attempts", "failures", "merged", "longest wait", "longest run", "run in all")


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
    head = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
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
        for label, value in zip(_COLUMNS, values, strict=True)
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
