"""`dibs doctor`: examine a storage and its workers, and say what to do."""

from __future__ import annotations

import textwrap
from typing import Any, Final

import msgspec
import rich_click as click

from dibs.cli import options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_lines
from dibs.cli.storage_access import find_storage
from dibs.cli.tables import print_in_format
from dibs.doctor import Report, examine
from dibs.errors import Refused

COLUMNS: Final = ("=severity", "=code", "subject", "found")
#: Width of the paragraphs below the table.
WIDTH: Final = 80


@click.command("doctor")
@click.argument("address", metavar="[URL]", required=False, default=None, help="As --url.")
@options.url
@options.output
async def command(address: str | None, *, url: str | None, output: Format) -> ExitCode:
    """Examine a storage and the workers on it, and print each fault with its remedy.

    It looks at clocks, durability, eviction, layouts, locks, free space, connections, expired leases, queues
    that nobody serves, paused queues, failure handlers, workers that differ, and outcomes that are kept for
    ever. It takes a few seconds, whatever the number of jobs, and changes no jobs. The codes of the findings
    are stable.

    Exit code 0 without errors and warnings (notes do not count), else 1.

    Example:
        dibs doctor redis://localhost
        dibs doctor --url file:./jobs --json
    """
    if address is not None and url is not None:
        raise Refused("the URL is given twice; leave out --url", field="url")
    report = await examine(find_storage(address if url is None else url))
    _print_report(report, output)
    return ExitCode.DONE if report.is_healthy else ExitCode.REFUSED


def _print_report(report: Report, output: Format) -> None:
    if output == "table":
        print_lines(f"storage     {report.storage}")
        if report.was_opened:
            print_lines(f"durability  {report.durability}")
            print_lines(f"examined    {report.queues:,} queues, {report.workers:,} live workers", "")
    print_in_format(
        output,
        _report_fields(report),
        COLUMNS,
        [(each.severity, each.code, each.subject, each.found) for each in report.findings],
        optional=("subject",),
        empty="no findings",
    )
    if output == "table":
        _print_remedies(report)


def _print_remedies(report: Report) -> None:
    """Print the meaning and the remedy of each kind of finding, once."""
    for each in {each.code: each for each in report.findings}.values():
        print_lines("", each.code)
        for text in (each.means, f"-> {each.advice}"):
            print_lines(*textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  "))


def _report_fields(report: Report) -> dict[str, Any]:
    return {
        "storage": report.storage,
        "opened": report.was_opened,
        "durability": report.durability,
        "queues": report.queues,
        "workers": report.workers,
        "healthy": report.is_healthy,
        "findings": [msgspec.to_builtins(each) for each in report.findings],
    }
