"""`dibs list`: the jobs of a queue that are in one state."""

from __future__ import annotations

from typing import get_args

import rich_click as click

from dibs.cli import options, shapes
from dibs.cli.output import say, table, write_json
from dibs.cli.place import opened, run
from dibs.model.job import Slot
from dibs.model.results import ListPage, State

#: How much of a payload, a result or an error a table shows.
GLIMPSE = 60

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
@click.option("--limit", type=options.Number(1, 1000), metavar="N", default=100, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where a listing stopped.")
@options.url
@options.json
def command(queue: str, *, state: State, limit: int, after: str | None, url: str | None, json: bool) -> None:
    """List the jobs of a queue that are in one state, in no promised order.

    Example: dibs list emails --state failed --url file:./jobs
    """
    run(_list(queue, state, after, limit, url, json=json))


async def _list(
    queue: str, state: State, after: str | None, limit: int, url: str | None, *, json: bool
) -> None:
    async with opened(url) as storage:
        page = await storage.list(queue, state, after=after, limit=limit)
    if json:
        jobs = [shapes.slot(queue, id, slot) for id, slot in page.items]
        write_json({"queue": queue, "state": state, "jobs": jobs, "after": page.after})
    else:
        _show(queue, state, page)


def _show(queue: str, state: State, page: ListPage) -> None:
    if not page.items:
        say(f"nothing {state} in {queue}")
        return
    when = "ended at" if state in ENDED else "claimed at" if state in RUNNING else "run at"
    table(["id", when, "#attempts", "#priority", "what"], [_row(id, slot, state) for id, slot in page.items])
    if page.after is not None:
        say(f"there is more: --after {page.after}")


def _row(id: str, slot: Slot, state: State) -> tuple[object, ...]:
    if state in ENDED and slot.outcome is not None:
        end = slot.outcome
        said = f"{end.error.type}: {end.error.message}" if end.error else _glimpse(end.result)
        return id, shapes.time(end.ended_at), end.attempts, "", _short(said)
    if state == "blocked" and slot.successor is not None:
        heir = slot.successor
        return id, shapes.time(heir.run_at), "", heir.data.priority, _glimpse(heir.data.payload)
    if slot.current is None:
        return id, "", "", "", ""
    job = slot.current
    when = job.run.claimed_at if job.run else job.run_at
    return id, shapes.time(when), job.attempts, job.data.priority, _glimpse(job.data.payload)


def _glimpse(raw: bytes | None) -> str:
    return "" if raw is None else _short(raw.decode(errors="backslashreplace"))


def _short(text: str) -> str:
    return text if len(text) <= GLIMPSE else f"{text[: GLIMPSE - 3]}..."
