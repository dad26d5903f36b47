"""`dibs events`: the log of a queue, and what is added to it."""

from __future__ import annotations

from collections.abc import Mapping

import rich_click as click

from dibs.cli import options, shapes
from dibs.cli.output import plain, say, warn, write_json
from dibs.cli.place import opened, run
from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST, Storage

PAGE = 1000
#: How often --follow looks even if nothing wakes it, s.
SLOW_POLL = 1.0


@click.command("events")
@options.queue
@click.option("--after", metavar="OFFSET", help="From there on; 'now' for what is yet to come.")
@click.option("--follow", is_flag=True, help="Wait for more until interrupted.")
@options.url
@options.json
def command(queue: str, *, after: str | None, follow: bool, url: str | None, json: bool) -> None:
    """Read the log of a queue, oldest first: one line for each end of an attempt.

    Each line begins with its offset; --after goes on from one and never misses or repeats any.

    Example: dibs events emails --follow --url file:./jobs
    """
    run(_events(queue, LATEST if after == "now" else after, url, follow=follow, json=json))


async def _events(queue: str, after: str | None, url: str | None, *, follow: bool, json: bool) -> None:
    since: Mapping[str, str] | None = None
    async with opened(url) as storage:
        while True:
            page = await _page(storage, queue, after, json=json)
            after = page.offset
            if page.events:
                continue
            if not follow:
                return
            wake = await storage.wait([queue], for_="events", since=since, timeout=SLOW_POLL)
            since = wake.since


async def _page(storage: Storage, queue: str, after: str | None, *, json: bool) -> EventPage:
    page = await storage.events(queue, after=after, limit=PAGE)
    if page.fell_off:
        warn(f"what came directly after {after} is no longer kept: some events are missing here")
    for offset, event in page.events:
        if json:
            write_json(shapes.event(queue, offset, event))
        else:
            say(_line(offset, event))
    return page


def _line(offset: str, event: LogEvent) -> str:
    took = "" if event.claimed_at is None or event.finished_at is None else _took(event)
    tries = f" attempt {event.attempt}" if event.attempt else ""
    error = f"  {event.error.type}: {event.error.message}" if event.error else ""
    return plain(f"{offset}  {shapes.time(event.at)}  {event.kind:<10} {event.id}{tries}{took}{error}")


def _took(event: LogEvent) -> str:
    return f" took {((event.finished_at or 0) - (event.claimed_at or 0)) / 1000:.3f} s"
