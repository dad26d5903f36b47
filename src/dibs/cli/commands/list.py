"""`dibs list`: list the jobs of a queue in one state or in all, in a time, or with a part of a text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final, cast, get_args

import rich_click as click
from attrs import evolve, frozen

from dibs.cli import json_output, options
from dibs.cli.errors import UsageError
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_lines, print_warning
from dibs.cli.parsing import parse_time
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import print_in_format
from dibs.client.options.arguments import duration_seconds
from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.model.results import Counts, ListPage, State
from dibs.storage.protocol import Storage

#: Most characters of a payload, a result or an error that the table shows.
MAX_TEXT = 60
#: Most jobs that one call with a filter reads; it prints the cursor behind them.
MAX_READ: Final = 100_000
#: Jobs that one call of the storage reads for a filter.
PAGE_SIZE: Final = 1_000

STATES: Final[tuple[State, ...]] = get_args(State)
#: States that together have each id once: "waiting" has scheduled jobs, and "active" handed-off ones.
ALL: Final[tuple[State, ...]] = ("waiting", "active", "completed", "failed", "cancelled")
RUNNING = ("active", "handed_off")
ENDED = ("completed", "failed", "cancelled")


@frozen
class ListedJob:
    """A listed job: the cells of the table, and the time in ms by which --since and --until select."""

    id: str
    state: State
    slot: Slot
    at: int | None
    attempts: object = ""
    priority: object = ""
    key: str = ""
    text: str = ""
    #: The payload of a job that has ended, which the table does not show.
    payload: str = ""

    def cells(self, longest: int | None, *, with_state: bool) -> Sequence[object]:
        when = json_output.format_time(self.at) or ""
        state = self.state if with_state else ""
        return self.id, state, when, self.attempts, self.priority, self.key, _shorten(self.text, longest)


@frozen
class ListFilter:
    """The jobs to print: from `since` and before `until`, in ms, and with `match` in a text of the job."""

    since: int | None
    until: int | None
    match: str

    @property
    def is_empty(self) -> bool:
        return self.since is None and self.until is None and not self.match

    def selects(self, row: ListedJob) -> bool:
        if self.since is not None and (row.at is None or row.at < self.since):
            return False
        if self.until is not None and (row.at is None or row.at >= self.until):
            return False
        return self.match.casefold() in f"{row.id}\n{row.key}\n{row.text}\n{row.payload}".casefold()


@click.command("list")
@options.queue
@click.option(
    "--state",
    type=click.Choice([*STATES, "all"]),
    metavar="STATE",
    default="waiting",
    help=f"One of {', '.join(STATES)}, or all.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Only jobs from this time on: how long ago, as 2h, or a time as 2030-01-31T09:00:00+01:00. It is "
    "the time of the end, of the claim of an active job, and from which a waiting job may run.",
)
@click.option("--until", metavar="TIME", help="Only jobs before this time, written as for --since.")
@click.option(
    "--match",
    metavar="TEXT",
    default="",
    help="Only jobs with this text in their id, key, payload, result or error, in letters of any case.",
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
    queue: str,
    *,
    state: str,
    since: str | None,
    until: str | None,
    match: str,
    limit: int,
    after: str | None,
    url: str | None,
    output: Format,
) -> ExitCode:
    """List the jobs of a queue in one state or in all of them, in no particular order.

    Exit code 1 if the queue does not exist.

    Example:
        dibs list emails --state failed --since 2h --match timeout --url file:./jobs
    """
    wanted = ListFilter(_parse_past("--since", since), _parse_past("--until", until), match)
    states = ALL if state == "all" else (cast("State", state),)
    async with connect(url) as storage:
        rows, cursor = await _find_rows(storage, queue, states, wanted, after=after, limit=limit)
        code = ExitCode.DONE if rows else (await select_queues(storage, [queue]))[1]
        others = "" if rows or state == "all" else _other_states((await storage.counts([queue]))[queue])
    _print_jobs(queue, state, wanted, rows, cursor, output, others=others)
    return code


def _other_states(counts: Counts) -> str:
    """Return how many jobs are in the states that ALL lists, as "; it has 8 failed"; "" for none."""
    numbers = [f"{number:,} {state}" for state in ALL if (number := getattr(counts, state))]
    return f"; it has {', '.join(numbers)}" if numbers else ""


def _parse_past(name: str, text: str | None) -> int | None:
    """Return a time in ms since the epoch, written as a duration before now or as ISO 8601."""
    if text is None:
        return None
    try:
        return round((time.time() - duration_seconds(name, text)) * 1000)
    except Refused:
        pass
    try:
        return parse_time(text, name)
    except UsageError:
        raise UsageError(
            f"{name} is {text!r}; write how long ago, as 90s, 2h or 1d12h, or a time as "
            "2030-01-31T09:00:00+01:00"
        ) from None


async def _find_rows(
    storage: Storage,
    queue: str,
    states: Sequence[State],
    wanted: ListFilter,
    *,
    after: str | None,
    limit: int,
) -> tuple[list[ListedJob], str | None]:
    """Return up to `limit` selected jobs, and the cursor behind those that were read; None at the end.

    The cursor of a listing of several states begins with the state. One call of a storage may return a
    short or an empty page before the last.
    """
    left = list(states)
    if len(states) > 1 and after is not None:
        state, _, after = after.partition(":")
        if state not in states:
            raise UsageError(
                "--after is no cursor of a listing with --state all; copy what the last page printed"
            )
        del left[: states.index(cast("State", state))]
    rows, read = list[ListedJob](), 0
    while left:
        found, page = await _read_rows(storage, queue, left[0], wanted, after, limit - len(rows))
        rows += found
        read += len(page.items)
        after = page.after
        if after is None:
            del left[0]
        if left and (len(rows) >= limit or read >= MAX_READ):
            return rows, after if len(states) == 1 else f"{left[0]}:{after or ''}"
    return rows, None


async def _read_rows(
    storage: Storage, queue: str, state: State, wanted: ListFilter, after: str | None, most: int
) -> tuple[list[ListedJob], ListPage]:
    """Return the selected jobs of one page, up to `most`, and the page that ends with the last of them."""
    page = await storage.list(queue, state, after=after or None, limit=most if wanted.is_empty else PAGE_SIZE)
    found = [(at, row) for at, row in enumerate(_rows_of(page, state), 1) if wanted.selects(row)]
    if len(found) > most:
        # A cursor stands behind a whole page, so the page is read again up to the last job that is printed.
        page = await storage.list(queue, state, after=after or None, limit=found[most - 1][0])
        return [row for row in _rows_of(page, state) if wanted.selects(row)], page
    return [row for _, row in found], page


def _rows_of(page: ListPage, state: State) -> Iterator[ListedJob]:
    return (_row(id, slot, state) for id, slot in page.items)


def _print_jobs(
    queue: str,
    state: str,
    wanted: ListFilter,
    rows: Sequence[ListedJob],
    after: str | None,
    output: Format,
    *,
    others: str,
) -> None:
    jobs = [json_output.slot_fields(queue, row.id, row.slot) for row in rows] if output == "json" else []
    when = "=ended at" if state in ENDED else "=claimed at" if state in RUNNING else "=run at"
    longest = MAX_TEXT if output == "table" else None
    what = "" if state == "all" else f" in the state {state}"
    print_in_format(
        output,
        {"queue": queue, "state": state, "jobs": jobs, "after": after},
        [
            "id",
            "state",
            "=time" if state == "all" else when,
            "#attempts",
            "#priority",
            "key",
            "payload, result or error",
        ],
        [row.cells(longest, with_state=state == "all") for row in rows],
        optional=("state", "#attempts", "#priority", "key"),
        empty=f"{queue} has no jobs{what}{others}"
        if wanted.is_empty
        else f"no job of {queue}{what} was found",
    )
    if after is not None and output == "table":
        print_lines(f"there are more jobs: continue with --after {after}")
    elif after is not None and output == "lines":
        print_warning(f"there are more jobs: continue with --after {after}")


def _row(id: str, slot: Slot, state: State) -> ListedJob:
    if state in ENDED and slot.outcome is not None:
        outcome, error = slot.outcome, slot.outcome.error
        text = f"{error.type}: {error.message}" if error else _decode_text(outcome.result)
        row = ListedJob(id, state, slot, outcome.ended_at, outcome.attempts, text=text)
        if outcome.data is None:
            return row
        return evolve(row, key=outcome.data.key or "", payload=_decode_text(outcome.data.payload))
    if state == "blocked" and slot.successor is not None:
        data = slot.successor.data
        at = slot.successor.run_at if slot.successor.creates else None
        return ListedJob(id, state, slot, at, "", data.priority, data.key or "", _decode_text(data.payload))
    if slot.current is None:
        return ListedJob(id, state, slot, None)
    job = slot.current
    at = job.run.claimed_at if job.run else job.run_at
    payload = _decode_text(job.data.payload)
    return ListedJob(id, state, slot, at, job.attempts, job.data.priority, job.data.key or "", payload)


def _decode_text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="backslashreplace")


def _shorten(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."
