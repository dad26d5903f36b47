"""The tables of a comparison: columns of the rows, on the console and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from attrs import frozen
from rich.table import Table

from benchmarks.peers.publish.rows import Row

if TYPE_CHECKING:
    from rich.console import Console

KINDS: Final = {"redis": "Redis", "postgresql": "Postgres", "file": "files", "memory": "memory"}
#: Heading -> (name in the row, format). An `x` is the ratio to the baseline of the same round.
RATES: Final = {
    "enqueue/s": ("enqueue", ",.0f"),
    "of baseline": ("enqueue_ratio", ".2f"),
    "jobs": ("enqueue_jobs", ",.0f"),
    "drain/s": ("drain", ",.0f"),
    "of baseline ": ("drain_ratio", ".2f"),
    "jobs ": ("drain_jobs", ",.0f"),
}
CALLS: Final = {
    "awaited enqueues/s": ("awaited", ",.0f"),
    "blocking enqueues/s": ("blocking", ",.0f"),
    "pickup p50 ms": ("pickup_p50_ms", ".2f"),
    "p99 ms": ("pickup_p99_ms", ".1f"),
    "result p50 ms": ("result_p50_ms", ".2f"),
    "p99 ms ": ("result_p99_ms", ".1f"),
}
COSTS: Final = {
    "worker µs": ("worker_us", ".1f"),
    "server µs": ("server_us", ".1f"),
    "server µs, enqueue": ("enqueue_server_us", ".1f"),
    "commands": ("commands", ".2f"),
    "bytes sent": ("bytes", ",.0f"),
    "WAL bytes": ("wal_bytes", ",.0f"),
    "WAL bytes, enqueue": ("enqueue_wal_bytes", ",.0f"),
    "bytes waiting": ("waiting_bytes", ",.0f"),
    "bytes kept": ("kept_bytes", ",.0f"),
}
BEHIND: Final = {
    "enqueue/s": ("enqueue", ",.0f"),
    "drain/s": ("drain", ",.0f"),
    "jobs": ("drain_jobs", ",.0f"),
    "awaited enqueues/s": ("awaited", ",.0f"),
    "blocking enqueues/s": ("blocking", ",.0f"),
    "pickup p50 ms": ("pickup_p50_ms", ".2f"),
    "worker µs": ("worker_us", ",.0f"),
}
Columns = dict[str, tuple[str, str]]


@frozen
class Grid:
    """A table as texts: the headings, and a line for each system."""

    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def grid(rows: Iterable[Row], columns: Columns) -> Grid:
    """Return the columns of these rows. A column without any figure is left out."""
    rows = list(rows)
    used = {
        heading: column
        for heading, column in columns.items()
        if any(row.get(column[0]) is not None for row in rows)
    }
    lines = [[row["name"], *(cell(row.get(name), form) for name, form in used.values())] for row in rows]
    return Grid(["system", *used], lines)


def fastest_first(rows: Iterable[Row], kind: str | None = None, *, behind: bool | None = None) -> list[Row]:
    """Return the measured rows of a kind, the fastest drain first."""
    found = [
        row
        for row in rows
        if "not_run" not in row and kind in (None, row["kind"]) and behind in (None, row["behind"])
    ]
    return sorted(found, key=lambda row: -row["drain"])


def many_queues(rows: Iterable[Row]) -> Grid:
    """Return the drains with many queues, relative to one queue."""
    headings = ["system", "storage", "queues", "drain/s", "of one queue", "pickup p50 ms", "of one queue "]
    lines = []
    for row in rows:
        for queues, many in row.get("queues", {}).items():
            kind, drain, pickup = KINDS[row["kind"]], many["drain"], many["pickup_p50_ms"]
            ratios = cell(drain / row["drain"], ".2f"), cell(pickup / row["pickup_p50_ms"], ".2f")
            lines.append(
                [
                    *(row["name"], kind, str(queues), cell(drain, ",.0f"), ratios[0]),
                    *(cell(pickup, ".2f"), ratios[1], cell(many["idle_commands"], ",.0f")),
                ]
            )
    return Grid([*headings, "idle commands/s"], lines)


def cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def markdown(table: Grid) -> str:
    """Return a table of Markdown, or a sentence if it is empty."""
    if not table.lines:
        return "Not measured."
    lines = [table.headings, ["---"] * len(table.headings), *table.lines]
    return "\n".join("| " + " | ".join(word.strip() for word in line) + " |" for line in lines)


def show(rows: list[Row], console: Console) -> None:
    """Print all tables, and a line for each system that cannot run."""
    for kind, name in KINDS.items():
        found = fastest_first(rows, kind, behind=False)
        for title, columns in (("rates", RATES), ("single calls", CALLS), ("cost a job", COSTS)):
            _print(grid(found, columns), f"{name}: {title}", console)
    _print(many_queues(rows), "many queues", console)
    _print(grid(fastest_first(rows, behind=True), BEHIND), "also behind", console)
    for row in rows:
        if row.get("not_run"):
            console.print(f"{row['name']}: not measured: {row['not_run']}", style="yellow", highlight=False)


def _print(table: Grid, title: str, console: Console) -> None:
    if len(table.headings) < 2 or not table.lines:
        return
    drawn = Table(title=title)
    drawn.add_column("system", no_wrap=True)
    for heading in table.headings[1:]:
        drawn.add_column(heading.strip(), justify="right")
    for line in table.lines:
        drawn.add_row(*line)
    console.print(drawn)
