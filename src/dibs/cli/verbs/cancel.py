"""`dibs cancel`: queued jobs end at once, running ones are asked to stop."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from dibs.cli import options
from dibs.cli.output import Code
from dibs.cli.place import opened, run
from dibs.cli.verdicts import tell_each


@click.command("cancel")
@options.queue
@options.ids
@click.option("--running", is_flag=True, help="Ask runs that have begun to stop, too.")
@options.url
@options.json
def command(queue: str, ids: tuple[str, ...], *, running: bool, url: str | None, json: bool) -> Code:
    """Cancel jobs. A waiting job ends; beside an active one, what is blocked is dropped.

    Leaves with 1 if any of the ids could not be cancelled: it is active, it has ended, or it is unknown.

    Example: dibs cancel emails welcome-42 --running --url file:./jobs
    """
    return run(_cancel(queue, ids, url, running=running, json=json))


async def _cancel(queue: str, ids: Sequence[str], url: str | None, *, running: bool, json: bool) -> Code:
    async with opened(url) as storage:
        answers = await storage.cancel(queue, ids, running=running)
    return tell_each(queue, ids, answers, good=("cancelled", "requested"), json=json)
