"""`dibs demo`: run a demo on the files of a folder."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from dibs.cli import options
from dibs.cli.demo.display import Display, display_for
from dibs.cli.demo.file_tree import QUEUE_DIRECTORY, FileTree, find_files, standard_library
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.storage_access import file_url_directory
from dibs.cli.tables import print_table
from dibs.client.connection.storage_handle import URL_VARIABLE, resolve_url
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from dibs.cli.demo.result import DemoResult


@click.command("demo")
@click.argument(
    "path",
    metavar="[PATH]",
    type=click.Path(path_type=Path),
    required=False,
    help="A folder or file. Default: the standard library of this Python.",
)
@click.option(
    "--processes",
    type=options.Number(min=1),
    metavar="N",
    help="Worker processes. Default: one per CPU, 2 to 8.",
)
@click.option("--url", metavar="URL", default=f"file:{QUEUE_DIRECTORY}", help="The storage of the jobs.")
@options.json
def command(path: Path | None, *, processes: int | None, url: str, json: bool) -> ExitCode:
    """Run a demo: enqueue one job for each file of a folder, and let worker processes compute its SHA-256.

    Meanwhile the demo shows how dibs blocks a duplicate, retries a failure and recovers from a killed
    worker. At the end it checks every result. It only reads your files.

    A second run processes only files that changed. After Ctrl-C, the next run continues.

    Example:
        dibs demo ~/Documents
    """
    if path is not None and not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    storage, display = open_storage(url), display_for(json=json)
    display.print_lines(f"dibs demo: one job for each file below {path or standard_library()}")
    found = find_files(path, exclude=file_url_directory(storage.url))
    several = processes or min(8, max(2, os.cpu_count() or 1))
    number = several if storage.capabilities.shared else 0
    with _demo_environment(url):
        result = _run_demo(found, number, display)
    return _print_result(result, found, display, json=json)


@contextmanager
def _demo_environment(url: str) -> Iterator[None]:
    """Set the URL for worker processes, and hide the log: it would report the killed worker as an error."""
    before, logger = os.environ.get(URL_VARIABLE), logging.getLogger("dibs")
    os.environ[URL_VARIABLE], level = resolve_url(url), logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.pop(URL_VARIABLE)
        if before is not None:
            os.environ[URL_VARIABLE] = before


def _run_demo(found: FileTree, processes: int, display: Display) -> DemoResult:
    from dibs.cli.demo.runner import DemoPlan, run_demo  # noqa: PLC0415 - imports the application

    return asyncio.run(run_demo(DemoPlan(tree=found, processes=processes), display))


def _print_result(result: DemoResult, found: FileTree, display: Display, *, json: bool) -> ExitCode:
    from dibs.cli.demo.result import COLUMNS, summary_line, table_rows, to_json  # noqa: PLC0415

    if json:
        print_json(to_json(result))
    else:
        print_lines(*(f"  skipped   {path}: {reason}" for path, reason in found.skipped[:3]))
        print_table(COLUMNS, table_rows(result))
        print_lines(*(f"failed: {failure}" for failure in result.failures))
        print_lines(*(f"WRONG: {mismatch}" for mismatch in result.mismatches), "")
        display.print_lines(summary_line(result))
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if result.good else ExitCode.REFUSED
