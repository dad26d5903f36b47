"""What a running worker shows: in a terminal a table that moves, elsewhere nothing but its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dibs.cli.output import plain
from dibs.telemetry.logs import setup_json_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.worker import WorkReport

#: Word of a report -> heading; short enough for 80 columns.
COLUMNS: Final = {
    "running": "running", "completed": "done", "failed": "failed", "retried": "retried",
    "timed_out": "timeouts", "stalled": "stalls", "cancelled": "cancelled",
}  # fmt: skip


def log_as_fits() -> None:
    """Log lines for people on a terminal's stderr, one JSON value a line elsewhere."""
    if sys.stderr.isatty():
        logging.basicConfig(level=logging.INFO, format="dibs: %(message)s", stream=sys.stderr)
    else:
        setup_json_logging(logging.INFO)


@contextmanager
def shown(*, json: bool) -> Iterator[Callable[[WorkReport], None] | None]:
    """Give what is to be called with each report; None where nobody watches."""
    if json or not sys.stdout.isatty():
        yield None
        return
    # Only a terminal pays for the import.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for handler in logging.root.handlers:
            # Above the table, not through it.
            if isinstance(handler, logging.StreamHandler) and handler.stream is not sys.stderr:
                handler.setStream(sys.stderr)
        yield lambda report: live.update(drawn(report), refresh=True)


def drawn(report: WorkReport) -> Any:
    """Return a report as a table."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    where = f"{len(report.processes)} processes" if report.processes else "this process"
    crashes = f", {report.crashes} crashed" if report.crashes else ""
    overruns = f", {report.overruns} overran" if report.overruns else ""
    grid = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption=f"{where}{crashes}{overruns}; {report.seconds:.0f} s",
        caption_justify="left",
    )  # fmt: skip
    grid.add_column("queue", overflow="fold")
    for heading in COLUMNS.values():
        grid.add_column(heading, justify="right", no_wrap=True)
    for queue, numbers in sorted(report.queues.items()):
        grid.add_row(plain(queue), *(f"{getattr(numbers, name):,}" for name in COLUMNS))
    return grid
