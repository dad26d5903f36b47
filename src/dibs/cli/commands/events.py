"""`dibs events`: print the event log of a queue."""

from __future__ import annotations

from collections.abc import Mapping

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, escape, print_json, print_lines, print_warning
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import print_tab_separated
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
@options.output
async def command(
    queue: str, *, after: str | None, follow: bool, url: str | None, output: Format
) -> ExitCode:
    """Print the event log of a queue, oldest events first.

    By default the log has one event for each attempt that ended. Each line begins with the event's offset.
    --after OFFSET continues after a line you have seen: it skips and repeats no event. Exit code 1 if the
    queue does not exist.

    Example:
        dibs events emails --follow --url file:./jobs
    """
    since: Mapping[str, str] | None = None
    async with connect(url) as storage:
        page = await _print_page(storage, queue, LATEST if after == "now" else after, output)
        code = ExitCode.DONE if page.events else (await select_queues(storage, [queue]))[1]
        while page.events or follow:
            after = page.offset
            page = await _print_page(storage, queue, after, output)
            if page.events or not follow:
                continue
            wake = await storage.wait([queue], for_="events", since=since, timeout=POLL_INTERVAL)
            since = wake.since
    return code


async def _print_page(storage: Storage, queue: str, after: str | None, output: Format) -> EventPage:
    page = await storage.events(queue, after=after, limit=PAGE_SIZE)
    if page.fell_off:
        begin = f"after {after}" if after else "before these"
        print_warning(f"events {begin} are missing here: the log's limit of age or size removed them")
    for offset, event in page.events:
        if output == "json":
            print_json(json_output.event_fields(queue, offset, event))
        elif output == "lines":
            print_tab_separated([_event_cells(offset, event)])
        else:
            print_lines(_format_event(offset, event))
    return page


def _event_cells(offset: str, event: LogEvent) -> tuple[object, ...]:
    error = f"{event.error.type}: {event.error.message}" if event.error else ""
    at = json_output.format_time(event.at)
    return offset, at, event.kind, event.id, event.attempt, event.holder, error


def _format_event(offset: str, event: LogEvent) -> str:
    took = "" if event.claimed_at is None or event.finished_at is None else _format_duration(event)
    attempt = f" attempt {event.attempt}" if event.attempt else ""
    error = f"  {event.error.type}: {event.error.message}" if event.error else ""
    return escape(
        f"{offset}  {json_output.format_time(event.at)}  {event.kind:<10} {event.id}{attempt}{took}{error}"
    )


def _format_duration(event: LogEvent) -> str:
    return f" took {((event.finished_at or 0) - (event.claimed_at or 0)) / 1000:.3f} s"
