"""`dibs migrate`: bring a storage to the layout of this version of dibs."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.storage_access import connect
from dibs.version import VERSION


@click.command("migrate")
@options.url
@options.json
async def command(*, url: str | None, json: bool) -> ExitCode:
    """Create a storage that is missing, or bring it to the layout of this version of dibs.

    Each process does this when it opens a storage. Use the command in a deployment whose workers and clients
    may not change tables: run it once before them, with the role that owns the schema. It changes no jobs,
    and does nothing if the layout is that of this version.

    Example:
        dibs migrate --url postgresql://migrator@db/shop
    """
    async with connect(url, create=True) as storage:
        if json:
            print_json({"storage": storage.url, "version": VERSION})
        else:
            print_lines(f"{storage.url} has the layout of dibs {VERSION}")
    return ExitCode.DONE
