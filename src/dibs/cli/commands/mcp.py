"""`dibs mcp`: let a program that speaks the Model Context Protocol read a storage."""

from __future__ import annotations

from typing import Final

import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.storage_access import connect

INSTALL_COMMAND: Final = 'pip install "dibs[mcp]"'


@click.command("mcp")
@click.option("--write", is_flag=True, help="Add tools that retry, cancel, pause, resume and run jobs now.")
@click.option("--hide-values", is_flag=True, help="Show no payloads, results or texts of errors.")
@options.url
async def command(*, write: bool, hide_values: bool, url: str | None) -> None:
    """Serve a storage to an assistant by the Model Context Protocol, on stdin and stdout.

    The assistant starts this command itself; its configuration has the command line. Without --write its
    tools only read: counts, jobs, events, settings, and why a job failed. It needs pip install "dibs[mcp]".

    Example:
        dibs mcp --url redis://localhost
    """
    try:
        from dibs.cli.mcp_server import build_server  # noqa: PLC0415 - the extra may be missing, and is slow
    except ImportError as error:
        raise UsageError(
            f"mcp needs {error.name or 'packages'} of the extra `mcp`, not installed: {INSTALL_COMMAND}"
        ) from error

    async with connect(url) as storage:
        await build_server(storage, write=write, hide=hide_values).run_stdio_async()
