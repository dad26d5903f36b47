"""`dibs resume`: let workers claim jobs of paused queues again."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.commands.pause import queues_or_all, set_paused


@click.command("resume")
@queues_or_all
@options.url
@options.json
async def command(queues: tuple[str, ...], *, all_queues: bool, url: str | None, json: bool) -> None:
    """Allow workers to claim jobs of paused queues again.

    Example:
        dibs resume emails --url file:./jobs
    """
    await set_paused(queues, url, all_queues=all_queues, paused=False, json=json)
