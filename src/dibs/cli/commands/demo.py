"""`dibs demo`: run a demo on the files of a folder."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.storage_access import file_url_directory
from dibs.client.connection.storage_handle import URL_VARIABLE, resolve_url
from dibs.storage.registry import open_storage


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
@click.option("--url", metavar="URL", default="file:.dibs-demo", help="The storage of the jobs.")
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
    # Imported here, because the runner imports the application, which is slow.
    from dibs.cli.demo.runner import Demo, find_files  # noqa: PLC0415

    storage = open_storage(url)
    found = find_files(path, exclude=file_url_directory(storage.url))
    several = processes or min(8, max(2, os.cpu_count() or 1))
    demo = Demo(path, found, several if storage.capabilities.shared else 0, silent=json)
    with _demo_environment(url):
        result = asyncio.run(demo.run())
    if json:
        print_json(msgspec.to_builtins(result))
    else:
        print_lines(*(f"  skipped   {path}: {reason}" for path, reason in found.skipped[:3]))
        print_lines(*(f"failed: {failure}" for failure in result.failures))
        print_lines(*(f"WRONG: {mismatch}" for mismatch in result.mismatches))
        demo.say(result.summary())
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if result.good else ExitCode.REFUSED


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
