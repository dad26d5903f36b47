"""`dibs certify URL`: the kit on the command line, found through the entry-point group dibs.commands."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dibs.errors import ConfigurationError, Refused
from dibs_conformance.door import certify as certify_target
from dibs_conformance.levels import RUNS

NOT_CERTIFIED = 1
WRONG_WORDS = 2


def certify(
    url: Annotated[str, typer.Argument(help="The storage; only places of the kit's own are touched.")],
    level: Annotated[str, typer.Option(help=f"How deep: {', '.join(RUNS)}.")] = "L0",
    budget: Annotated[float, typer.Option(help="Seconds to spend.")] = 60,
    examples: Annotated[
        int | None, typer.Option(help="Histories on each level, in place of the budget.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat the run with this seed.")] = None,
    *,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page of HTML here.")] = None,
    badge: Annotated[Path | None, typer.Option(help="Write a badge here, an SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Hold a storage against the contract, and tell what was met, kept and broken."""
    try:
        with quiet():
            report = certify_target(url, level, budget, seed, examples=examples, progress=show)
    except (Refused, ConfigurationError, NotImplementedError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG_WORDS) from None
    clear()
    for path, form in ((html, report.html), (badge, report.badge)):
        if path is not None:
            path.write_text(form(), "utf-8")
    typer.echo(report.json() if json else report.text())
    raise typer.Exit(0 if report.certified else NOT_CERTIFIED)


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
