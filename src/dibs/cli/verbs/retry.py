"""`dibs retry`: failed jobs go round again."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from dibs.cli import options
from dibs.cli.output import Code
from dibs.cli.place import opened, run
from dibs.cli.refusals import WrongWords
from dibs.cli.verdicts import tell_each
from dibs.storage.protocol import Storage


@click.command("retry")
@options.queue
@click.argument("ids", metavar="[ID...]", nargs=-1, help="The ids, unless --all is given.")
@click.option("--all", "everything", is_flag=True, help="All of the queue that have failed.")
@options.url
@options.json
def command(queue: str, ids: tuple[str, ...], *, everything: bool, url: str | None, json: bool) -> Code:
    """Send failed jobs round again: each waits, with its counts at 0, and its failed outcome is gone.

    Leaves with 1 if any of the ids could not be sent: it is live, did not fail, or has no payload kept.

    Example: dibs retry emails welcome-42 --url file:./jobs
    """
    if bool(ids) == everything:
        raise WrongWords("say which: either ids, or --all")
    return run(_retry(queue, ids, url, json=json))


async def _retry(queue: str, ids: Sequence[str], url: str | None, *, json: bool) -> Code:
    async with opened(url) as storage:
        chosen = ids or await _failed(storage, queue)
        answers = await storage.retry_failed(queue, chosen)
    return tell_each(queue, chosen, answers, good=("queued",), json=json)


async def _failed(storage: Storage, queue: str) -> list[str]:
    """Return every failed id, read to the end first: a retried one leaves the listing."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = await storage.list(queue, "failed", after=after, limit=1000)
        found += [id for id, _ in page.items]
        after = page.after
        if after is None:
            return found
