"""`dibs list`: list the jobs of a queue in one state."""

from __future__ import annotations

from typing import get_args

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_lines, print_warning
from dibs.cli.storage_access import connect, read_page, select_queues
from dibs.cli.tables import print_in_format
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
@options.output
async def command(
    queue: str, *, state: State, limit: int, after: str | None, url: str | None, output: Format
) -> ExitCode:
    """List the jobs of a queue in one state, in no particular order.

    Exit code 1 if the queue does not exist.

    Example:
        dibs list emails --state failed --url file:./jobs
    """
    async with connect(url) as storage:
        page = await read_page(storage, queue, state, after=after, limit=limit)
        code = ExitCode.DONE if page.items else (await select_queues(storage, [queue]))[1]
    _print_jobs(queue, state, page, output)
    return code


def _print_jobs(queue: str, state: State, page: ListPage, output: Format) -> None:
    jobs = [json_output.slot_fields(queue, id, slot) for id, slot in page.items] if output == "json" else []
    when = "=ended at" if state in ENDED else "=claimed at" if state in RUNNING else "=run at"
    longest = MAX_TEXT if output == "table" else None
    print_in_format(
        output,
        {"queue": queue, "state": state, "jobs": jobs, "after": page.after},
        ["id", when, "#attempts", "#priority", "key", "payload, result or error"],
        [_format_row(id, slot, state, longest) for id, slot in page.items],
        optional=("#attempts", "#priority", "key"),
        empty=f"{queue} has no jobs in the state {state}",
    )
    if page.after is not None and output == "table":
        print_lines(f"there are more jobs: continue with --after {page.after}")
    elif page.after is not None and output == "lines":
        print_warning(f"there are more jobs: continue with --after {page.after}")


def _format_row(id: str, slot: Slot, state: State, longest: int | None) -> tuple[object, ...]:
    if state in ENDED and slot.outcome is not None:
        outcome = slot.outcome
        error = outcome.error
        text = f"{error.type}: {error.message}" if error else _decode_text(outcome.result)
        key = "" if outcome.data is None else outcome.data.key or ""
        return (
            id,
            json_output.format_time(outcome.ended_at),
            outcome.attempts,
            "",
            key,
            _shorten(text, longest),
        )
    if state == "blocked" and slot.successor is not None:
        data = slot.successor.data
        payload = _shorten(_decode_text(data.payload), longest)
        when = json_output.successor_due(slot.successor) or ""
        return id, when, "", data.priority, data.key or "", payload
    if slot.current is None:
        return id, "", "", "", "", ""
    job = slot.current
    return (
        id,
        json_output.format_time(job.run.claimed_at if job.run else job.run_at),
        job.attempts,
        job.data.priority,
        job.data.key or "",
        _shorten(_decode_text(job.data.payload), longest),
    )


def _decode_text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="backslashreplace")


def _shorten(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."
