"""`dibs purge`: remove all waiting and blocked jobs and all outcomes of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import rich_click as click

from dibs.app import Dibs
from dibs.cli import options
from dibs.cli.completion import complete_queue
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.progress import Advance, check_can_confirm, confirm, progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.client.queue import Queue
from dibs.model.results import Counts

#: Time between two updates of the progress bar, s.
POLL_INTERVAL: Final = 0.2


@click.command("purge")
@click.argument(
    "queues",
    metavar="QUEUE...",
    nargs=-1,
    required=True,
    help="Names of one or more queues.",
    shell_complete=complete_queue,
)
@click.option("--running", is_flag=True, help="Also remove active jobs; their workers lose them.")
@options.yes
@options.url
@options.json
async def command(
    queues: tuple[str, ...], *, running: bool, yes: bool, url: str | None, json: bool
) -> ExitCode:
    """Remove all waiting and blocked jobs and all outcomes of queues, as `queue.clear()` in Python.

    Active jobs continue, and their outcomes are kept. Settings, events and request keys stay, too. The next
    tick of a periodic task is removed; a worker stores it again. A job that is enqueued during the command
    may stay, or may be removed.

    The command prints the number of jobs and asks; a program confirms with --yes. Exit code 1 if a queue does
    not exist.

    Example:
        dibs purge emails --yes --url file:./jobs
    """
    check_can_confirm(yes=yes)
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        counts = await storage.counts(names)
    if code != ExitCode.DONE or not confirm(_question(counts, running=running), yes=yes):
        return ExitCode.REFUSED
    removed = {}
    async with Dibs(url) as app:
        for name in names:
            total = _count_ids(counts[name], running=running)
            with progress_bar("removed", total) as advance:
                removed[name] = await _clear(app.queue(name), advance, total, running=running)
    if json:
        print_json({"queues": {name: {"removed": number} for name, number in removed.items()}})
    else:
        print_lines(
            *(f"removed {number:,} jobs and all outcomes of {name}" for name, number in removed.items())
        )
    return code


def _question(counts: Mapping[str, Counts], *, running: bool) -> str:
    jobs = sum(found.waiting + found.blocked + found.active * running for found in counts.values())
    outcomes = sum(found.completed + found.failed + found.cancelled for found in counts.values())
    return f"Remove {jobs:,} jobs and {outcomes:,} outcomes of {', '.join(counts)}?"


def _count_ids(found: Counts, *, running: bool) -> int:
    ended = found.completed + found.failed + found.cancelled
    return found.waiting + found.blocked + ended + found.active * running


async def _clear(queue: Queue, advance: Advance, total: int, *, running: bool) -> int:
    """Clear a queue of `total` ids, and meanwhile show the number of removed ids."""
    clearing = asyncio.ensure_future(queue.clear(running=running))
    try:
        while not (await asyncio.wait([clearing], timeout=POLL_INTERVAL))[0]:
            left = _count_ids(await queue.counts(), running=running)
            advance(max(0, total - left))
        return await clearing
    finally:
        clearing.cancel()
