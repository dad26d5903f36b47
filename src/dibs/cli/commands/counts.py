"""`dibs counts`: count the jobs in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import print_in_format
from dibs.model.results import Counts

STATES = tuple(name for name in Counts.__struct_fields__ if name != "approximate")
COLUMNS = ("queue", *(f"#{state.replace('_', ' ')}" for state in STATES))
#: Columns that the table leaves out while all of their numbers are 0.
RARE = ("#scheduled", "#retrying", "#handed off", "#blocked", "#cancelled")

#: Longest time between two counts of --watch, s, when no wake-up arrives.
POLL_INTERVAL = 1.0
#: Shortest time between two counts of --watch, s: a busy queue would otherwise keep a CPU busy.
MIN_INTERVAL = 0.2


@click.command("counts")
@options.queues
@click.option("--watch", is_flag=True, help="Print the counts again after each change, until Ctrl-C.")
@options.url
@options.output
async def command(queues: tuple[str, ...], *, watch: bool, url: str | None, output: Format) -> ExitCode:
    """Count the jobs of queues in each state.

    Waiting includes scheduled jobs (due later) and retrying jobs (a run failed, another one follows), and
    active includes handed-off jobs (finished by another program). The table leaves out scheduled, retrying,
    handed off, blocked and cancelled if all are 0. A count above 10,000 may be approximate and is marked
    with ~. Exit code 1 if a queue does not exist.

    Example:
        dibs counts --watch --url file:./jobs
    """
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        counted = await storage.counts(names)
        print_counts(counted, output)
        while watch:
            await asyncio.sleep(MIN_INTERVAL)
            await storage.wait(list(counted), for_="events", timeout=POLL_INTERVAL)
            names = [*queues] or (await select_queues(storage, ()))[0]
            latest = await storage.counts(names)
            if latest != counted:
                counted = latest
                if output == "table":
                    click.clear()
                print_counts(counted, output)
    return code


def print_counts(counted: Mapping[str, Counts], output: Format) -> None:
    """Print the counts of queues, by name."""
    print_in_format(
        output,
        json_output.counts_by_queue(counted),
        COLUMNS,
        [(name, *_format_counts(value)) for name, value in counted.items()],
        optional=RARE,
        empty="the storage has no queues",
    )


def _format_counts(value: Counts) -> list[str]:
    mark = "~" if value.approximate else ""
    return [f"{mark if getattr(value, state) > 10_000 else ''}{getattr(value, state)}" for state in STATES]
