"""`dibs pause`: stop workers from claiming jobs of a queue."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.output import print_json, print_lines
from dibs.cli.storage_access import connect, warn_of_new_queue
from dibs.model.requests import SettingsPatch


@click.command("pause")
@options.queue
@options.url
@options.json
async def command(queue: str, *, url: str | None, json: bool) -> None:
    """Stop all workers from claiming jobs of a queue, until `dibs resume`.

    Jobs that are active run to their end. New jobs can be enqueued; they wait.

    Example:
        dibs pause emails --url file:./jobs
    """
    await set_paused(queue, url, paused=True, json=json)


async def set_paused(queue: str, url: str | None, *, paused: bool, json: bool) -> None:
    """Pause or resume a queue, and print its new state."""
    async with connect(url, create=True) as storage:
        await warn_of_new_queue(storage, queue)
        settings = await storage.configure(queue, SettingsPatch(paused=paused))
    if json:
        print_json({"queue": queue, "paused": settings.paused})
    else:
        print_lines(f"{'paused' if settings.paused else 'resumed'} {queue}")
