"""`dibs pause`: stop workers from claiming jobs of queues."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.completion import complete_queue
from dibs.cli.options import F
from dibs.cli.output import print_json, print_lines
from dibs.cli.storage_access import connect, select_queues, warn_of_new_queue
from dibs.model.requests import SettingsPatch


def queues_or_all(function: F) -> F:
    """Add QUEUE..., or --all instead, to a command. Its parameters are `queues` and `all_queues`."""
    named = click.argument(
        "queues", metavar="[QUEUE...]", nargs=-1, help="Names of queues.", shell_complete=complete_queue
    )
    every = click.option("--all", "all_queues", is_flag=True, help="All queues of the storage.")
    return named(every(function))


@click.command("pause")
@queues_or_all
@options.url
@options.json
async def command(queues: tuple[str, ...], *, all_queues: bool, url: str | None, json: bool) -> None:
    """Stop all workers from claiming jobs of queues, until `dibs resume`.

    Jobs that are active run to their end. New jobs can be enqueued; they wait.

    Example:
        dibs pause emails --url file:./jobs
    """
    await set_paused(queues, url, all_queues=all_queues, paused=True, json=json)


async def set_paused(
    queues: tuple[str, ...], url: str | None, *, all_queues: bool, paused: bool, json: bool
) -> None:
    """Pause or resume queues, and print the new state of each."""
    if all_queues == bool(queues):
        raise click.UsageError(
            "Pass either QUEUE..., one or more names, or --all for all queues of the storage."
        )
    states = {}
    async with connect(url, create=not all_queues) as storage:
        for queue in queues:
            await warn_of_new_queue(storage, queue)
        for queue in queues or (await select_queues(storage, ()))[0]:
            states[queue] = (await storage.configure(queue, SettingsPatch(paused=paused))).paused
    if json:
        print_json({"queues": {queue: {"paused": state} for queue, state in states.items()}})
    else:
        print_lines(*(f"{'paused' if state else 'resumed'} {queue}" for queue, state in states.items()))
