"""`dibs retry`: enqueue failed jobs again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.storage_access import connect
from dibs.storage.protocol import Storage


@click.command("retry")
@options.queue
@click.argument("ids", metavar="[ID...]", nargs=-1, help="Ids of failed jobs; leave out with --all.")
@click.option("--all", "everything", is_flag=True, help="Retry all failed jobs of the queue.")
@options.url
@options.json
def command(queue: str, ids: tuple[str, ...], *, everything: bool, url: str | None, json: bool) -> ExitCode:
    """Enqueue failed jobs again, with the payload of the failed run.

    Attempts, retries and stalls are counted from 0 again, and the failed outcome is removed. Exit code 1 if
    one of the jobs is waiting or active, has not failed, or failed without keeping its payload.

    Example:
        dibs retry emails welcome-42 --url file:./jobs
    """
    if bool(ids) == everything:
        raise UsageError("retry needs either ids or --all; pass one of them")
    return asyncio.run(_retry_jobs(queue, ids, url, json=json))


async def _retry_jobs(queue: str, ids: Sequence[str], url: str | None, *, json: bool) -> ExitCode:
    async with connect(url) as storage:
        chosen = ids or await _list_failed_ids(storage, queue)
        answers = await storage.retry_failed(queue, chosen)
    return print_answers(queue, chosen, answers, good=("queued",), json=json)


async def _list_failed_ids(storage: Storage, queue: str) -> list[str]:
    """Return the ids of all failed jobs of a queue.

    Read every page before the first retry, because a retry removes its id from the listing.
    """
    found: list[str] = []
    after: str | None = None
    while True:
        page = await storage.list(queue, "failed", after=after, limit=1000)
        found += [id for id, _ in page.items]
        after = page.after
        if after is None:
            return found
