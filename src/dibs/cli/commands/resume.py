"""`dibs resume`: let workers claim jobs of a paused queue again."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.commands.pause import set_paused


@click.command("resume")
@options.queue
@options.url
@options.json
async def command(queue: str, *, url: str | None, json: bool) -> None:
    """Allow workers to claim jobs of a paused queue again.

    Example:
        dibs resume emails --url file:./jobs
    """
    await set_paused(queue, url, paused=False, json=json)
