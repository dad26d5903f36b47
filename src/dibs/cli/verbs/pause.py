"""`dibs pause`: nothing more is claimed from a queue."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.output import say, write_json
from dibs.cli.place import opened, run
from dibs.model.requests import SettingsPatch


@click.command("pause")
@options.queue
@options.url
@options.json
def command(queue: str, *, url: str | None, json: bool) -> None:
    """Stop a queue from being claimed from. What runs, runs on; what is enqueued, waits.

    Example: dibs pause emails --url file:./jobs
    """
    run(set_paused(queue, url, paused=True, json=json))


async def set_paused(queue: str, url: str | None, *, paused: bool, json: bool) -> None:
    """Pause or resume a queue, and say which."""
    async with opened(url, new=True) as storage:
        settings = await storage.configure(queue, SettingsPatch(paused=paused))
    if json:
        write_json({"queue": queue, "paused": settings.paused})
    else:
        say(f"{'paused' if settings.paused else 'resumed'} {queue}")
