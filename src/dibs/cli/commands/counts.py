"""`dibs counts`: count the jobs in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.output import escape, print_json, print_lines, print_table
from dibs.cli.storage_access import connect, select_queues
from dibs.model.results import Counts
from dibs.storage.protocol import Storage

STATES = tuple(name for name in Counts.__struct_fields__ if name != "approximate")

#: Longest time between two counts of --watch, s, when no wake-up arrives.
POLL_INTERVAL = 1.0
#: Shortest time between two counts of --watch, s: a busy queue would otherwise keep a CPU busy.
MIN_INTERVAL = 0.2


@click.command("counts")
@options.queues
@click.option("--watch", is_flag=True, help="Print the counts again after each change, until Ctrl-C.")
@options.url
@options.json
def command(queues: tuple[str, ...], *, watch: bool, url: str | None, json: bool) -> None:
    """Count the jobs of queues in each state.

    Waiting includes scheduled jobs (due later), active includes handed-off jobs (finished by another
    program). A count above 10,000 may be approximate and is marked with ~.

    Example:
        dibs counts --watch --url file:./jobs
    """
    asyncio.run(_run_counts(queues, url, watch=watch, json=json))


async def _run_counts(queues: Sequence[str], url: str | None, *, watch: bool, json: bool) -> None:
    async with connect(url) as storage:
        counted = await _print_first_counts(storage, queues, json=json)
        while watch:
            await asyncio.sleep(MIN_INTERVAL)
            await storage.wait(list(counted), for_="events", timeout=POLL_INTERVAL)
            names = queues or await select_queues(storage, ())
            latest = await storage.counts(names)
            if latest != counted:
                counted = latest
                print_counts(counted, again=True, json=json)


async def _print_first_counts(storage: Storage, queues: Sequence[str], *, json: bool) -> dict[str, Counts]:
    counted = await storage.counts(await select_queues(storage, queues))
    print_counts(counted, json=json)
    return counted


def print_counts(counted: Mapping[str, Counts], *, again: bool = False, json: bool = False) -> None:
    """Print a table of counts, or JSON. With `again`, clear the terminal before the table."""
    if json:
        print_json(json_output.counts_by_queue(counted))
        return
    if again:
        click.clear()
    if not counted:
        print_lines("the storage has no queues")
        return
    rows = [(name, *_format_counts(value)) for name, value in counted.items()]
    print_table(["queue", *(f"#{state.replace('_', ' ')}" for state in STATES)], rows)


def _format_counts(value: Counts) -> list[str]:
    mark = "~" if value.approximate else ""
    return [
        escape(f"{mark if getattr(value, state) > 10_000 else ''}{getattr(value, state)}") for state in STATES
    ]
