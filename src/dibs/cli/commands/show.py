"""`dibs show`: print one job, or describe the storage."""

from __future__ import annotations

import asyncio

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.descriptions import show_slot, show_storage, slot_lines
from dibs.cli.errors import UsageError
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_json
from dibs.cli.queue_names import complete_queue
from dibs.cli.storage_access import connect
from dibs.cli.tables import print_tab_separated
from dibs.model.job import EMPTY


# The brackets in the two metavars make one pair in the usage line: [QUEUE ID].
@click.command("show")
@click.argument(
    "queue", metavar="[QUEUE", required=False, help="Name of the queue.", shell_complete=complete_queue
)
@click.argument("id", metavar="ID]", required=False, help="Id of the job.")
@options.url
@options.output
def command(queue: str | None, id: str | None, *, url: str | None, output: Format) -> ExitCode:
    """Show one job: its current state, its blocked successor and the outcome of its last run.

    Without queue and id, describe the storage: its durability, capabilities, queues and files.
    Exit code 1 if the id does not exist.

    Examples:
        dibs show emails welcome-42 --url file:./jobs
        dibs show --url file:./jobs
    """
    if queue is None:
        return asyncio.run(show_storage(url, output))
    if id is None:
        raise UsageError(f"the id is missing: write dibs show {queue} ID; `dibs list {queue}` prints ids")
    return asyncio.run(_show_job(queue, id, url, output))


async def _show_job(queue: str, id: str, url: str | None, output: Format) -> ExitCode:
    async with connect(url) as storage:
        (slot,) = await storage.get(queue, [id])
    if output == "json":
        print_json(json_output.slot_fields(queue, id, slot))
    elif output == "lines":
        print_tab_separated(slot_lines(queue, id, slot))
    else:
        show_slot(queue, id, slot)
    return ExitCode.REFUSED if slot == EMPTY else ExitCode.DONE
