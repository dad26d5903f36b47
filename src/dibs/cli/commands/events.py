"""`dibs events`: print the event log of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.output import escape, print_json, print_lines, print_warning
from dibs.cli.storage_access import connect
from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST, Storage

#: Most events that one read returns.
PAGE_SIZE = 1000
#: Longest time between two reads of --follow, s, when no wake-up arrives.
POLL_INTERVAL = 1.0


@click.command("events")
@options.queue
@click.option(
    "--after", metavar="OFFSET", help="Start after this offset, or with 'now' at the end of the log."
)
@click.option("--follow", is_flag=True, help="Wait for new events, until Ctrl-C.")
@options.url
@options.json
def command(queue: str, *, after: str | None, follow: bool, url: str | None, json: bool) -> None:
    """Print the event log of a queue, oldest events first.

    By default the log has one event for each attempt that ended. Each line begins with the event's offset.
    --after OFFSET continues after a line you have seen: it skips and repeats no event.

    Example:
        dibs events emails --follow --url file:./jobs
    """
    asyncio.run(_print_events(queue, LATEST if after == "now" else after, url, follow=follow, json=json))


async def _print_events(queue: str, after: str | None, url: str | None, *, follow: bool, json: bool) -> None:
    since: Mapping[str, str] | None = None
    async with connect(url) as storage:
        while True:
            page = await _print_page(storage, queue, after, json=json)
            after = page.offset
            if page.events:
                continue
            if not follow:
                return
            wake = await storage.wait([queue], for_="events", since=since, timeout=POLL_INTERVAL)
            since = wake.since


async def _print_page(storage: Storage, queue: str, after: str | None, *, json: bool) -> EventPage:
    page = await storage.events(queue, after=after, limit=PAGE_SIZE)
    if page.fell_off:
        begin = f"after {after}" if after else "before these"
        print_warning(f"events {begin} are missing here: the log's limit of age or size removed them")
    for offset, event in page.events:
        if json:
            print_json(json_output.event_fields(queue, offset, event))
        else:
            print_lines(_format_event(offset, event))
    return page


def _format_event(offset: str, event: LogEvent) -> str:
    took = "" if event.claimed_at is None or event.finished_at is None else _format_duration(event)
    attempt = f" attempt {event.attempt}" if event.attempt else ""
    error = f"  {event.error.type}: {event.error.message}" if event.error else ""
    return escape(
        f"{offset}  {json_output.format_time(event.at)}  {event.kind:<10} {event.id}{attempt}{took}{error}"
    )


def _format_duration(event: LogEvent) -> str:
    return f" took {((event.finished_at or 0) - (event.claimed_at or 0)) / 1000:.3f} s"
