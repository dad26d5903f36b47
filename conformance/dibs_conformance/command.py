"""`dibs certify URL`: the kit on the command line, found through the entry-point group dibs.commands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click

from dibs.errors import ConfigurationError, Refused
from dibs_conformance.certification import certify as certify_target
from dibs_conformance.levels import LEVELS

NOT_CERTIFIED = 1
WRONG_WORDS = 2


@click.command("certify")
@click.argument("url", metavar="URL", help="The storage; only places of the kit's own are touched.")
@click.option("--level", metavar="LEVEL", default="L0", help=f"How deep: {', '.join(LEVELS)}.")
@click.option("--budget", type=float, metavar="SECONDS", default=60, help="Seconds to spend.")
@click.option("--examples", type=int, metavar="N", help="Histories on each level, in place of the budget.")
@click.option("--seed", type=int, metavar="N", help="Repeat the run with this seed.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as a page of HTML here."
)
@click.option("--badge", type=click.Path(path_type=Path), metavar="FILE", help="Write a badge here, an SVG.")
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
    """Hold a storage against the contract, and tell what was met, kept and broken."""
    try:
        with quiet():
            report = certify_target(url, level, budget, seed, examples=examples, progress=show)
    except (Refused, ConfigurationError, NotImplementedError) as error:
        click.echo(str(error), err=True)
        ctx.exit(WRONG_WORDS)
    clear()
    for path, form in ((html, report.html), (badge, report.badge)):
        if path is not None:
            path.write_text(form(), "utf-8")
    click.echo(report.json() if json else report.text())
    ctx.exit(0 if report.certified else NOT_CERTIFIED)


@contextmanager
def quiet() -> Iterator[None]:
    """The report tells the durability once; each place that is opened would say it again."""
    log = logging.getLogger("dibs.storage")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def show(examples: int) -> None:
    """Say on a terminal how far it is."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{examples:,} histories")
        sys.stderr.flush()


def clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
