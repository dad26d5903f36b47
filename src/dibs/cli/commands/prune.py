"""`dibs prune`: remove expired outcomes, request keys and events."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.progress import progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import print_table
from dibs.model.results import PruneResult
from dibs.storage.protocol import Storage

#: Maximum number of entries that one step removes, so that other processes can work between two steps.
BATCH_SIZE = 1000


@click.command("prune")
@options.queues
@options.url
@options.json
async def command(queues: tuple[str, ...], *, url: str | None, json: bool) -> ExitCode:
    """Remove expired outcomes and request keys, and old events of the log.

    Workers do this automatically. Use the command for a storage without a running worker.

    Example:
        dibs prune --url file:./jobs
    """
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        pruned = {name: await _prune_queue(storage, name) for name in names}
    if json:
        print_json({"queues": pruned})
    elif pruned:
        columns = ["queue", "#outcomes", "#request keys", "#events"]
        print_table(columns, [(name, *numbers.values()) for name, numbers in pruned.items()])
    else:
        print_lines("the storage has no queues")
    return code


async def _prune_queue(storage: Storage, queue: str) -> dict[str, int]:
    step = await storage.prune(queue, BATCH_SIZE)
    total = _removed_records(step)
    if step.more:
        with progress_bar("entries removed", None) as advance:
            while step.more:
                advance(sum(total.values()))
                step = await storage.prune(queue, BATCH_SIZE)
                total = {name: total[name] + number for name, number in _removed_records(step).items()}
    return total


def _removed_records(step: PruneResult) -> dict[str, int]:
    return {"outcomes": step.outcomes, "request_keys": step.request_keys, "events": step.events}
