"""`dibs counts`: how many ids are in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import rich_click as click

from dibs.cli import options, shapes
from dibs.cli.output import plain, say, table, write_json
from dibs.cli.place import names_of_queues, opened, run
from dibs.model.results import Counts
from dibs.storage.protocol import Storage

STATES = tuple(name for name in Counts.__struct_fields__ if name != "approximate")

#: How often --watch looks even if nothing wakes it, s.
SLOW_POLL = 1.0
#: How long it rests after a look, so that a busy queue does not make it spin, s.
REST = 0.2


@click.command("counts")
@options.queues
@click.option("--watch", is_flag=True, help="Count again whenever something happens.")
@options.url
@options.json
def command(queues: tuple[str, ...], *, watch: bool, url: str | None, json: bool) -> None:
    """Count the jobs of some queues, or of all, in each state.

    Waiting includes scheduled, and active includes handed off. Above 10,000 a count may be approximate: ~.

    Example: dibs counts --watch --url file:./jobs
    """
    run(_counts(queues, url, watch=watch, json=json))


async def _counts(queues: Sequence[str], url: str | None, *, watch: bool, json: bool) -> None:
    async with opened(url) as storage:
        counted = await _count(storage, queues, json=json)
        while watch:
            await asyncio.sleep(REST)
            await storage.wait(list(counted), for_="events", timeout=SLOW_POLL)
            names = queues or await names_of_queues(storage, ())
            latest = await storage.counts(names)
            if latest != counted:
                counted = latest
                show(counted, again=True, json=json)


async def _count(storage: Storage, queues: Sequence[str], *, json: bool) -> dict[str, Counts]:
    counted = await storage.counts(await names_of_queues(storage, queues))
    show(counted, json=json)
    return counted


def show(counted: Mapping[str, Counts], *, again: bool = False, json: bool = False) -> None:
    """Print the counts; `again` puts them over the last ones where there is a terminal."""
    if json:
        write_json(shapes.by_queue(counted))
        return
    if again:
        # Only a terminal is.
        click.clear()
    if not counted:
        say("there are no queues here")
        return
    rows = [(name, *_numbers(value)) for name, value in counted.items()]
    table(["queue", *(f"#{state.replace('_', ' ')}" for state in STATES)], rows)


def _numbers(value: Counts) -> list[str]:
    mark = "~" if value.approximate else ""
    return [
        plain(f"{mark if getattr(value, state) > 10_000 else ''}{getattr(value, state)}") for state in STATES
    ]
