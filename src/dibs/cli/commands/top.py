"""`dibs top`: read the longest queues, their rates and the errors of a storage every two seconds."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import rich_click as click
from attrs import frozen

from dibs.app import Dibs
from dibs.cli import options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, escape, print_lines
from dibs.cli.storage_access import find_storage
from dibs.cli.tables import fold, format_age, print_in_format, table_lines
from dibs.client.connection.storage_handle import resolve_url
from dibs.model.findings import Finding
from dibs.web.reading.overview import Activity, Overview, read_overview
from dibs.web.reading.queue import read_oldest
from dibs.web.reading.source import Source, gather

COLUMNS: Final = (
    "queue", "#waiting", "=oldest due", "#active", "#retrying", "#failed", "#in/s", "#done/s", "#failed/s",
)  # fmt: skip
#: Lines of a terminal that the queues do not take: the line above, the headings, and some findings.
OTHER_LINES: Final = 10


@frozen
class Look:
    """One reading of a storage."""

    #: The longest queues, at most those of a page of the dashboard.
    overview: Overview
    #: Queue -> ms since its oldest waiting job was due; None if no job is due.
    ages: dict[str, int | None]
    #: The errors that `dibs doctor` finds.
    errors: Sequence[Finding]


@click.command("top")
@click.argument("text", metavar="[TEXT]", default="", help="Show only queues whose names contain this text.")
@click.option(
    "--interval",
    type=options.Seconds(min=0.1),
    metavar="DURATION",
    default=2.0,
    help="Time between two readings.",
)
@options.url
@options.output
async def command(text: str, *, interval: float, url: str | None, output: Format) -> ExitCode:
    """Show the queues with the most waiting jobs, their rates and the errors of the storage, until Ctrl-C.

    Rates are the jobs of a second that came in, ended, and failed for good, over the last ten seconds. They
    come from the log of a queue: with log_level off, in/s and done/s are unknown. `oldest due` is the time
    since the oldest waiting job could run. Errors that `dibs doctor` finds stand below. Without a terminal,
    the command reads twice, and prints the second reading.

    Example:
        dibs top --url file:./jobs
    """
    app = Dibs(resolve_url(url))
    find_storage(app.url)
    async with app:
        source, activity = Source(app), Activity()
        is_live = output == "table" and sys.stdout.isatty()
        await _look(source, activity, text)
        if is_live:
            await _show_until_interrupted(source, activity, text, interval)
        await asyncio.sleep(interval)
        look = await _look(source, activity, text)
        print_in_format(output, _fields(look), COLUMNS, _rows(look), empty="no queue has such a name")
        if output == "table":
            print_lines(*_errors(look))
    return ExitCode.DONE


async def _look(source: Source, activity: Activity, text: str) -> Look:
    storage = await source.storage()
    overview = await read_overview(source, activity, {"filter": text, "sort": "waiting"})
    oldest = await gather(overview.rows, lambda row: read_oldest(storage, row.name, row.counts))
    now = time.time() * 1000
    ages = {
        row.name: None if found is None else max(0, int(now - found.run_at))
        for row, found in zip(overview.rows, oldest, strict=True)
    }
    report = await source.examination.report()
    errors = [each for each in report.findings if each.severity == "error"] if report is not None else []
    return Look(overview, ages, errors)


async def _show_until_interrupted(source: Source, activity: Activity, text: str, interval: float) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow, and needed in a terminal only
    from rich.live import Live  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            look = await _look(source, activity, text)
            live.update(Text(screen_text(look, *shutil.get_terminal_size())), refresh=True)
            await asyncio.sleep(interval)


def screen_text(look: Look, width: int, height: int) -> str:
    """Return the text of a screen: a line about the storage, the queues that fit, and the errors."""
    overview = look.overview
    rates = "".join(
        f", {_rate(value)}/s {word}"
        for word, value in (("in", overview.rates.arrived), ("done", overview.rates.ended))
        if value is not None
    )
    first = f"queues: {overview.queues:,}, workers: {overview.workers:,}{rates}"
    rows = [[escape(cell) for cell in row] for row in _rows(look)[: max(1, height - OTHER_LINES)]]
    head, body = table_lines(COLUMNS, rows, width)
    left = overview.selected - len(rows)
    more = [f"and {left:,} more queues"] if left > 0 else []
    errors = [line for text in _errors(look) for line in fold(escape(text), width)]
    lines = [first, "", *head, *body, *more, *([""] if errors else []), *errors]
    return "\n".join(lines[:height])


def _rows(look: Look) -> list[tuple[object, ...]]:
    return [
        (
            row.name,
            row.counts.waiting,
            "" if (age := look.ages[row.name]) is None else format_age(age),
            row.counts.active,
            row.counts.retrying,
            row.counts.failed,
            *(_rate(value) for value in (row.rates.arrived, row.rates.ended, row.rates.failed)),
        )
        for row in look.overview.rows
    ]


def _errors(look: Look) -> list[str]:
    return [f"{each.code}: {each.subject} {each.found}" for each in look.errors]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _fields(look: Look) -> dict[str, Any]:
    return {
        "queues": {
            row.name: {
                "waiting": row.counts.waiting,
                "oldest_due_ms": look.ages[row.name],
                "active": row.counts.active,
                "retrying": row.counts.retrying,
                "failed": row.counts.failed,
                "in_per_s": row.rates.arrived,
                "done_per_s": row.rates.ended,
                "failed_per_s": row.rates.failed,
                "paused": row.paused,
                "unserved": row.is_unserved,
            }
            for row in look.overview.rows
        },
        "workers": look.overview.workers,
        "errors": [{"code": each.code, "subject": each.subject, "found": each.found} for each in look.errors],
    }
