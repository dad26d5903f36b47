"""`dibs prune`: what has expired is removed."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click

from dibs.cli import options
from dibs.cli.output import say, table, write_json
from dibs.cli.place import names_of_queues, opened, run
from dibs.model.results import PruneResult
from dibs.storage.protocol import Storage

#: How much is removed in one step of the storage: others get in between.
STEP = 1000


@click.command("prune")
@options.queues
@options.url
@options.json
def command(queues: tuple[str, ...], *, url: str | None, json: bool) -> None:
    """Remove expired outcomes and request keys, and what the log need not keep, from some queues or all.

    Workers do this on their own; it is for places where no worker runs.

    Example: dibs prune --url file:./jobs
    """
    run(_prune(queues, url, json=json))


async def _prune(queues: Sequence[str], url: str | None, *, json: bool) -> None:
    async with opened(url) as storage:
        names = await names_of_queues(storage, queues)
        pruned = {name: await _all_of(storage, name) for name in names}
    if json:
        write_json({"queues": pruned})
    elif pruned:
        columns = ["queue", "#outcomes", "#request keys", "#events"]
        table(columns, [(name, *numbers.values()) for name, numbers in pruned.items()])
    else:
        say("there are no queues here")


async def _all_of(storage: Storage, queue: str) -> dict[str, int]:
    total = {"outcomes": 0, "request_keys": 0, "events": 0}
    step = PruneResult(more=True)
    while step.more:
        step = await storage.prune(queue, STEP)
        total = {name: number + getattr(step, name) for name, number in total.items()}
    return total
