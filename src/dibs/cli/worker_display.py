"""Progress of a running worker: a live table in a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dibs.cli.foreground import is_in_foreground
from dibs.cli.output import escape
from dibs.cli.tables import table_lines
from dibs.telemetry.logs import JobContextFilter, JsonFormatter, TerminalFormatter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.worker import WorkReport

#: Counters of a WorkReport and their column headings, short enough for a terminal of 80 columns.
COLUMNS: Final = {
    "running": "running", "completed": "done", "failed": "failed", "retried": "retried",
    "timed_out": "timeouts", "stalled": "stalls", "cancelled": "cancelled",
}  # fmt: skip


def set_up_logging(level: str | None) -> None:
    """Log to stderr: plain lines in a terminal, one JSON value a line elsewhere.

    Call it after the import of the application, whose own logging stays. `level` is the value of
    --log-level. None keeps the level that the application has set; without one, it is "info".
    """
    from dibs.worker.processes.logs import (  # noqa: PLC0415 - slow: it imports the client
        ConsoleHandler,
        add_console_handler,
        enable_dibs_loggers,
    )

    handler = ConsoleHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(TerminalFormatter())
    else:
        handler.setFormatter(JsonFormatter())
        handler.addFilter(JobContextFilter())
    add_console_handler(handler, logging.INFO)
    if level is not None:
        logging.getLogger("dibs").setLevel(level.upper())
    enable_dibs_loggers()


@contextmanager
def live_table(*, json: bool) -> Iterator[Callable[[WorkReport], None] | None]:
    """Yield a function that shows a report in a live table, or None without a terminal or with `json`.

    A process in the background draws no table, because it would overwrite the prompt of the shell.
    """
    if json or not sys.stdout.isatty() or not is_in_foreground():
        yield None
        return
    # Imported here, because only a terminal needs rich, which is slow to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for handler in (*logging.getLogger().handlers, *logging.getLogger("dibs").handlers):
            # Rich replaced sys.stderr: log through it, so that lines appear above the table.
            if isinstance(handler, logging.StreamHandler) and handler.stream is not sys.stderr:
                handler.setStream(sys.stderr)

        def show(report: WorkReport) -> None:
            if is_in_foreground():
                live.update(Text(report_table(report, console.width)), refresh=True)

        yield show


def report_table(report: WorkReport, width: int) -> str:
    """Return a table with a row for each queue, at most `width` wide, and a line about the processes."""
    where = f"{len(report.processes)} processes" if report.processes else "this process"
    crashes = f", {report.crashes} crashed" if report.crashes else ""
    overruns = f", {report.overruns} overran" if report.overruns else ""
    rows = [
        [escape(queue), *(f"{getattr(numbers, name):,}" for name in COLUMNS)]
        for queue, numbers in sorted(report.queues.items())
    ]
    head, body = table_lines(["queue", *(f"#{heading}" for heading in COLUMNS.values())], rows, width)
    return "\n".join([*head, *body, f"{where}{crashes}{overruns}; {report.seconds:.0f} s"])
