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
@click.option("--key", metavar="KEY", help="Stop only jobs with this key.")
@options.url
@options.json
async def command(
    queues: tuple[str, ...], *, all_queues: bool, key: str | None, url: str | None, json: bool
) -> None:
    """Stop all workers from claiming jobs of queues, until `dibs resume`.

    Jobs that are active run to their end. New jobs can be enqueued; they wait.

    Examples:
        dibs pause emails --url file:./jobs
        dibs pause emails --key acme --url file:./jobs
    """
    patch = SettingsPatch(paused=True) if key is None else SettingsPatch(shares={key: 0})
    await set_paused(queues, url, all_queues=all_queues, patch=patch, key=key, json=json)


async def set_paused(
    queues: tuple[str, ...],
    url: str | None,
    *,
    all_queues: bool,
    patch: SettingsPatch,
    key: str | None,
    json: bool,
) -> None:
    """Pause or resume queues, or a key of them, by a patch, and print the new state of each."""
    if all_queues == bool(queues):
        raise click.UsageError(
            "Pass either QUEUE..., one or more names, or --all for all queues of the storage."
        )
    states = {}
    async with connect(url, create=not all_queues) as storage:
        for queue in queues:
            await warn_of_new_queue(storage, queue)
        for queue in queues or (await select_queues(storage, ()))[0]:
            settings = await storage.configure(queue, patch)
            states[queue] = settings.paused if key is None else settings.shares.get(key) == 0
    if json:
        named = {} if key is None else {"key": key}
        print_json({"queues": {queue: {**named, "paused": state} for queue, state in states.items()}})
    else:
        of_key = "" if key is None else f" key {key}"
        lines = (f"{'paused' if state else 'resumed'} {queue}{of_key}" for queue, state in states.items())
        print_lines(*lines)
