"""The command `dibs certify URL`. The entry-point group dibs.commands adds it to the command line."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dibs.errors import ConfigurationError, Refused
from dibs.model.duration_text import parse_seconds
from dibs_conformance.certification import INTERRUPTED
from dibs_conformance.certification import certify as certify_target
from dibs_conformance.levels import LEVELS
from dibs_conformance.report import CertificationReport

EXIT_NOT_CERTIFIED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


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

    def _describe_range(self) -> str:
        # click would write "x<=None", as there are no bounds.
        return ""


#: Click joins the lines of a paragraph, except in a paragraph after "\b".
HELP: Final = """Test a storage against the contract, and print what was tried.

\b
L0  one call at a time, compared with a simple model
L1  calls interleaved, in an order drawn from the seed
L2  threads, and processes if they may share the storage
L3  clients killed, stopped, cancelled, disconnected; power loss
L4  servers killed, full, read-only (started for the test)

A level is reached if it and all levels below it ran completely, and no law of the contract was broken. The
report names what was tried, and what was not with the reason. The tests run in locations that are created for
them (a prefix, schema or folder) and removed at the end. Ctrl-C ends the run with a report.

Exit codes: 0 the level is reached, 1 it is not, 2 invalid arguments, 130 interrupted.
"""
EXAMPLE: Final = "Example: dibs certify file:./scratch --level L3 --budget 5m --out report.html"


@click.command("certify", help=HELP, epilog=EXAMPLE)
@click.argument("url", metavar="URL", help="The storage to test. Its own jobs are never touched.")
@click.option("--level", metavar="LEVEL", default="L0", help=f"Highest level to test: {', '.join(LEVELS)}.")
@click.option(
    "--budget",
    type=Duration(),
    metavar="DURATION",
    default=60,
    help="Time for all levels, as 60 or 5m. The least number of tests of a level may take longer.",
)
@click.option(
    "--examples", type=int, metavar="N", help="Histories to test on each level, instead of a budget."
)
@click.option("--seed", type=int, metavar="N", help="Seed of an earlier run, to repeat it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Write the report to FILE, by its ending: .html, .json, .svg (a badge) or .txt. Repeatable.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the page to FILE.")
@click.option("--badge", type=click.Path(path_type=Path), metavar="FILE", help="Write the badge to FILE.")
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
    out: tuple[Path, ...],
    html: Path | None,
    badge: Path | None,
    json: bool,
) -> None:
    forms = find_forms(ctx, out, html, badge)
    progress = ProgressLine(level, budget, examples)
    try:
        with without_durability_warnings(), progress:
            report = certify_target(url, level, budget, seed, examples=examples, progress=progress.update)
    except (Refused, ConfigurationError, NotImplementedError) as error:
        click.echo(str(error), err=True)
        ctx.exit(EXIT_USAGE)
    for path, form in forms:
        path.write_text(RENDERERS[form](report), "utf-8")
    click.echo(report.json() if json else report.text())
    interrupted = any(one.stopped == INTERRUPTED for one in report.levels)
    ctx.exit(EXIT_INTERRUPTED if interrupted else 0 if report.certified else EXIT_NOT_CERTIFIED)


def find_forms(
    ctx: click.Context, out: tuple[Path, ...], html: Path | None, badge: Path | None
) -> list[tuple[Path, str]]:
    """Return the files to write with their forms. Exit with 2, before the test, if one cannot be written."""
    forms = [(path, path.suffix.lower()) for path in out]
    forms += [(path, form) for path, form in ((html, ".html"), (badge, ".svg")) if path is not None]
    for path, form in forms:
        if form not in RENDERERS:
            ctx.fail(f"--out {path}: expected a name that ends with {', '.join(RENDERERS)}")
        if not path.absolute().parent.is_dir():
            ctx.fail(f"the folder of {path} does not exist; create it first")
    return forms


RENDERERS: Final[dict[str, Callable[[CertificationReport], str]]] = {
    ".html": CertificationReport.html,
    ".json": CertificationReport.json,
    ".svg": CertificationReport.badge,
    ".txt": CertificationReport.text,
}


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


class ProgressLine:
    """A progress bar on a terminal: the time of the budget, and the number of tested histories.

    Without a terminal it writes nothing.
    """

    def __init__(self, level: str, budget: float, examples: int | None) -> None:
        self._is_shown = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn(f"up to {level}"),
            BarColumn(),
            TextColumn("{task.fields[tried]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._is_shown,
        )
        self._budget = budget if examples is None else None
        self._task = self._bar.add_task("", total=self._budget, tried="")
        self._began = time.monotonic()

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, histories: int) -> None:
        """Show the number of histories of the current part of a level."""
        passed = time.monotonic() - self._began
        done = None if self._budget is None else min(passed, self._budget)
        self._bar.update(self._task, completed=done, tried=f"{histories:,} histories")
