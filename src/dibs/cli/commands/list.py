"""`dibs list`: list the jobs of a queue in one state."""

from __future__ import annotations

import asyncio
from typing import get_args

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.output import print_json, print_lines, print_table
from dibs.cli.storage_access import connect
from dibs.model.job import Slot
from dibs.model.results import ListPage, State

#: Most characters of a payload, a result or an error that the table shows.
MAX_TEXT = 60

STATES = get_args(State)
RUNNING = ("active", "handed_off")
ENDED = ("completed", "failed", "cancelled")


@click.command("list")
@options.queue
@click.option(
    "--state",
    type=click.Choice(STATES),
    metavar="STATE",
    default="waiting",
    help=f"One of {', '.join(STATES)}.",
)
@click.option(
    "--limit", type=options.Number(1, 1000), metavar="N", default=100, help="Maximum number of jobs."
)
@click.option(
    "--after", metavar="CURSOR", help="Continue a listing after this cursor, which the last page printed."
)
@options.url
@options.json
def command(queue: str, *, state: State, limit: int, after: str | None, url: str | None, json: bool) -> None:
    """List the jobs of a queue in one state, in no particular order.

    Example:
        dibs list emails --state failed --url file:./jobs
    """
    asyncio.run(_list_jobs(queue, state, after, limit, url, json=json))


async def _list_jobs(
    queue: str, state: State, after: str | None, limit: int, url: str | None, *, json: bool
) -> None:
    async with connect(url) as storage:
        page = await storage.list(queue, state, after=after, limit=limit)
    if json:
        jobs = [json_output.slot_fields(queue, id, slot) for id, slot in page.items]
        print_json({"queue": queue, "state": state, "jobs": jobs, "after": page.after})
    else:
        _print_jobs(queue, state, page)


def _print_jobs(queue: str, state: State, page: ListPage) -> None:
    if not page.items:
        print_lines(f"{queue} has no jobs in the state {state}")
        return
    when = "ended at" if state in ENDED else "claimed at" if state in RUNNING else "run at"
    print_table(
        ["id", when, "#attempts", "#priority", "payload, result or error"],
        [_format_row(id, slot, state) for id, slot in page.items],
    )
    if page.after is not None:
        print_lines(f"there are more jobs: continue with --after {page.after}")


def _format_row(id: str, slot: Slot, state: State) -> tuple[object, ...]:
    if state in ENDED and slot.outcome is not None:
        outcome = slot.outcome
        error = outcome.error
        text = f"{error.type}: {error.message}" if error else _decode_text(outcome.result)
        return id, json_output.format_time(outcome.ended_at), outcome.attempts, "", _shorten(text)
    if state == "blocked" and slot.successor is not None:
        successor = slot.successor
        payload = _shorten(_decode_text(successor.data.payload))
        return id, json_output.format_time(successor.run_at), "", successor.data.priority, payload
    if slot.current is None:
        return id, "", "", "", ""
    job = slot.current
    when = job.run.claimed_at if job.run else job.run_at
    return (
        id,
        json_output.format_time(when),
        job.attempts,
        job.data.priority,
        _shorten(_decode_text(job.data.payload)),
    )


def _decode_text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="backslashreplace")


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
