"""`dibs demo`: real files go through a durable queue."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from dibs.cli import options
from dibs.cli.demo.screen import Screen, screen_for
from dibs.cli.demo.walk import HOME, Walk, standard_library, walk
from dibs.cli.files import folder_of
from dibs.cli.output import Code, say, table, write_json
from dibs.cli.place import run
from dibs.cli.refusals import WrongWords
from dibs.client.connection.url import URL_VARIABLE
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from dibs.cli.demo.result import Result


@click.command("demo")
@click.argument(
    "path",
    metavar="[PATH]",
    type=click.Path(path_type=Path),
    required=False,
    help="A directory; the standard library of this Python if left out.",
)
@click.option(
    "--processes",
    type=options.Number(min=1),
    metavar="N",
    help="Worker processes; one per CPU, at least 2, if left out.",
)
@click.option("--url", metavar="URL", default=f"file:{HOME}", help="Where the queue lives.")
@options.json
def command(path: Path | None, *, processes: int | None, url: str, json: bool) -> Code:
    """Watch real work go through a durable queue: one job for each file, every digest checked.

    Run it again, and only what changed is processed. Ctrl-C loses nothing: the next run goes on.

    Example: dibs demo ~/Documents
    """
    if path is not None and not path.exists():
        raise WrongWords(f"there is no {path}")
    storage, screen = open_storage(url), screen_for(json=json)
    screen.say(f"the files below {path or standard_library()}, as jobs")
    found = walk(path, avoid=folder_of(storage.url))
    several = processes or min(8, max(2, os.cpu_count() or 1))
    number = several if storage.capabilities.shared else 0
    with _environment(url):
        result = _play(found, number, screen)
    return _tell(result, found, json=json)


@contextmanager
def _environment(url: str) -> Iterator[None]:
    """Let the worker processes know the place, and let the log be quiet: a kill here is part of the show."""
    before, logger = os.environ.get(URL_VARIABLE), logging.getLogger("dibs")
    os.environ[URL_VARIABLE], level = url, logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop(URL_VARIABLE)
        if before is not None:
            os.environ[URL_VARIABLE] = before


def _play(found: Walk, processes: int, screen: Screen) -> Result:
    from dibs.cli.demo.play import Plan, play  # noqa: PLC0415 - brings the application, whose place is known now

    return run(play(Plan(walk=found, processes=processes), screen))


def _tell(result: Result, found: Walk, *, json: bool) -> Code:
    from dibs.cli.demo.result import COLUMNS, for_programs, last_line, rows  # noqa: PLC0415

    if json:
        write_json(for_programs(result))
    else:
        say(*(f"  skipped   {path}: {why}" for path, why in found.skipped[:3]))
        table(COLUMNS, rows(result))
        say(*(f"failed: {failure}" for failure in result.failures))
        say(*(f"WRONG: {mismatch}" for mismatch in result.mismatches), "", last_line(result))
    if result.interrupted:
        return Code.INTERRUPTED
    return Code.DONE if result.good else Code.REFUSED
