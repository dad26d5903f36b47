"""The command `dibs certify URL`. The entry-point group dibs.commands adds it to the command line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich_click as click

from dibs.errors import ConfigurationError, Refused
from dibs.model.duration_text import parse_seconds
from dibs_conformance.certification import certify as certify_target
from dibs_conformance.levels import LEVELS

EXIT_NOT_CERTIFIED = 1
EXIT_USAGE = 2


class Duration(click.FloatRange):
    """A number of seconds, or text such as 5m or 1h30m. The value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_seconds("it", value) if isinstance(value, str) and value[-1:].isalpha() else value
        except ValueError as error:
            self.fail(f"{value!r} is not a duration: {error}", param, ctx)
        bounded: float = super().convert(seconds, param, ctx)
        return bounded


@click.command("certify")
@click.argument("url", metavar="URL", help="The storage to test. Its own jobs are never touched.")
@click.option("--level", metavar="LEVEL", default="L0", help=f"Highest level to test: {', '.join(LEVELS)}.")
@click.option(
    "--budget",
    type=Duration(),
    metavar="DURATION",
    default=60,
    help="Time to spend on all levels, as 60 or 5m.",
)
@click.option(
    "--examples", type=int, metavar="N", help="Histories to test on each level, instead of a budget."
)
@click.option("--seed", type=int, metavar="N", help="Seed of an earlier run, to repeat it.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as HTML to FILE."
)
@click.option("--badge", type=click.Path(path_type=Path), metavar="FILE", help="Write an SVG badge to FILE.")
@click.option("--json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def certify(
    ctx: click.Context,
    url: str,
    *,
    level: str,
    budget: float,
    examples: int | None,
    seed: int | None,
    html: Path | None,
    badge: Path | None,
    json: bool,
) -> None:
    """Test a storage against the contract, and print a report.

    The report lists each law of the contract with the number of times it was checked. The tests run in
    locations that are created for them (a prefix, schema or folder) and removed at the end. Exit codes: 0
    certified, 1 not certified, 2 invalid arguments.
    """
    try:
        with without_durability_warnings():
            report = certify_target(url, level, budget, seed, examples=examples, progress=show_progress)
    except (Refused, ConfigurationError, NotImplementedError) as error:
        click.echo(str(error), err=True)
        ctx.exit(EXIT_USAGE)
    clear_progress()
    for path, render in ((html, report.html), (badge, report.badge)):
        if path is not None:
            path.write_text(render(), "utf-8")
    click.echo(report.json() if json else report.text())
    ctx.exit(0 if report.certified else EXIT_NOT_CERTIFIED)


@contextmanager
def without_durability_warnings() -> Iterator[None]:
    """Hide log warnings of `dibs.storage` about weak durability.

    The kit opens a storage many times, and each opening would log the warning. The report has it once.
    """
    log = logging.getLogger("dibs.storage")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def show_progress(examples: int) -> None:
    """Show on a terminal how many histories were tested so far."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{examples:,} histories")
        sys.stderr.flush()


def clear_progress() -> None:
    """Erase the progress line from a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
