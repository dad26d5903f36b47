"""`dibs resume`: a paused queue goes on."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.place import run
from dibs.cli.verbs.pause import set_paused


@click.command("resume")
@options.queue
@options.url
@options.json
def command(queue: str, *, url: str | None, json: bool) -> None:
    """Let a paused queue go on.

    Example: dibs resume emails --url file:./jobs
    """
    run(set_paused(queue, url, paused=False, json=json))
