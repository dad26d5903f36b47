"""`dibs show`: all there is of one id; without one, the whole place explained."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options, shapes
from dibs.cli.explained import show_place, show_slot
from dibs.cli.output import Code, write_json
from dibs.cli.place import opened, run
from dibs.cli.refusals import WrongWords
from dibs.model.job import EMPTY


# Both or none: the brackets of the usage go round the two.
@click.command("show")
@click.argument("queue", metavar="[QUEUE", required=False, help="The queue's name.")
@click.argument("id", metavar="ID]", required=False, help="The id.")
@options.url
@options.json
def command(queue: str | None, id: str | None, *, url: str | None, json: bool) -> Code:
    """Show all there is of one id. Without queue and id, explain the place: what it is, keeps and holds.

    Leaves with 1 if nothing is known of the id.

    Examples:
        dibs show emails welcome-42 --url file:./jobs
        dibs show --url file:./jobs
    """
    if queue is None:
        return run(show_place(url, json=json))
    if id is None:
        raise WrongWords(f"which id of {queue!r}? dibs list names them; dibs show alone explains the place")
    return run(_show(queue, id, url, json=json))


async def _show(queue: str, id: str, url: str | None, *, json: bool) -> Code:
    async with opened(url) as storage:
        (slot,) = await storage.get(queue, [id])
    if json:
        write_json(shapes.slot(queue, id, slot))
    else:
        show_slot(queue, id, slot)
    return Code.REFUSED if slot == EMPTY else Code.DONE
