"""The heat map of starts and the table of workers of a queue, as HTML."""

from __future__ import annotations

from datetime import UTC, datetime

from dibs.spark.report.figures.activity import MAX_WORKERS
from dibs.spark.report.figures.periods import RangeFigures
from dibs.spark.report.page.banners import clip, format_minute
from dibs.spark.report.page.charts import format_ms

_COLUMNS = ("attempts", "failures", "stalled", "mean run", "longest run", "run in all", "latest end")


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
    head = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
    rows = []
    for worker in figures.workers:
        mean = worker.run_ms / worker.attempts if worker.attempts else None
        values = (
            f"{worker.attempts:,}", f"{worker.failures:,}", f"{worker.stalled:,}", format_ms(mean),
            format_ms(worker.longest_run_ms), format_ms(worker.run_ms), format_minute(worker.last_end),
        )  # fmt: skip
        cells = "".join(
            f'<td class="n{" whole" if label == "latest end" else ""}" data-label="{label}">{value}</td>'
            for label, value in zip(_COLUMNS, values, strict=True)
        )
        rows.append(f'<tr><td class="id name">{clip(worker.holder)}</td>{cells}</tr>')
    left = figures.worker_count - len(figures.workers)
    more = f'<p class="soft">{left:,} more workers had fewer attempts.</p>' if left else ""
    return (
        f'<div class="card wide"><h3>Workers, the {MAX_WORKERS} with most attempts</h3>'
        f'<table class="cards"><thead><tr><th>worker</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        f"</table>{more}</div>"
    )
