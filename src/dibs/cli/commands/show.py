"""`dibs show`: everything stored for one id, or the description of the storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.completion import complete_queue
from dibs.cli.errors import UsageError
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, escape, print_json, print_lines, print_warning
from dibs.cli.parsing import changed_settings
from dibs.cli.storage_access import ListedFile, connect, file_url_directory, format_files, list_files
from dibs.cli.tables import print_tab_separated, print_table
from dibs.client.calls.run_logs import record_text
from dibs.client.calls.run_output import split_chunk
from dibs.client.calls.signals import current_wait
from dibs.model.events import LogEvent
from dibs.model.job import EMPTY, Slot
from dibs.model.limits import LATEST_TIME
from dibs.model.results import Counts, QueueInfo
from dibs.model.worker_record import without_reserved
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage

#: Capability -> what `dibs show` prints for a storage that has it, and for a storage without it.
CAPABILITY_TEXTS = {
    "durable": (
        "jobs survive the death of every process that uses the storage",
        "jobs are lost with their process",
    ),
    "shared": ("several processes may use it at the same time", "one process may use it at a time"),
    "cross_queue": (
        "follow-up jobs may go to other queues in the same atomic step",
        "follow-up jobs stay in the queue of their job",
    ),
    "blocking_claim": (
        "a worker's claim can wait in the storage until a job is due",
        "a worker claims a job after a wake-up or a poll",
    ),
    "output": (
        "jobs keep the output that their runs write",
        "runs cannot write output",
    ),
    "many_queues": (
        "a worker serves all its queues in one request",
        "a worker sends a request for each of its queues",
    ),
    "transactions": (
        "enqueue can be part of your own database transaction",
        "each enqueue is a transaction of its own",
    ),
    "push_wakeups": (
        "a change wakes waiting workers and callers at once",
        "waiting workers and callers poll",
    ),
    "limits": (
        "claims obey limits by key and rate",
        "limits by key and rate are refused",
    ),
    "fair": (
        "keys of a queue can take turns, and be paused",
        "turns and shares of keys are refused",
    ),
    "server_clock": ("the time is that of the server", "the time is that of the machine of each process"),
    "manual_clock": ("can be opened with a manual clock, for tests", "always uses its own clock"),
}


#: Most chunks of output that one read returns, and the longest time between two reads of --follow, s.
PAGE_SIZE = 100
POLL_INTERVAL = 1.0

#: State of an id -> the words that `dibs show` prints after the id.
STATE_TEXTS = {
    "waiting": "is waiting",
    "parked": "is parked: its handler waits for a signal",
    "active": "is active",
    "active+blocked": "is active, and a newer enqueue of it is blocked until its end",
    "completed": "has completed",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "nothing": "has no job; an enqueue of it was cancelled",
}


def show_slot(queue: str, id: str, slot: Slot) -> None:
    """Print everything stored for one id: current job, blocked successor, outcome, cancelled enqueues."""
    if slot == EMPTY:
        print_lines(f"{queue}/{id} does not exist")
        return
    fields = json_output.slot_fields(queue, id, slot)
    print_lines(f"{queue}/{id} {STATE_TEXTS[fields['state']]}{_wait_text(slot)}")
    for part in ("current", "successor", "outcome"):
        if fields[part] is not None:
            print_lines("", f"{part}:")
            print_lines(*(f"  {name:<20} {value}" for name, value in _flatten(fields[part])))
    if slot.dropped:
        print_lines("", "dropped ranges:", *(f"  {first}..{last}" for first, last in slot.dropped))


def _wait_text(slot: Slot) -> str:
    """Return the name of the signal that a parked job waits for, and the end of its wait; else ""."""
    job = slot.current
    wait = None if job is None or not job.is_parked else current_wait(job.data.memo)
    if wait is None:
        return ""
    until = "" if wait.until >= LATEST_TIME else f" until {json_output.format_time(wait.until)}"
    return f" named {wait.name!r}{until}"


def slot_lines(queue: str, id: str, slot: Slot) -> Iterable[tuple[str, str]]:
    """Yield each field of an id as (name, text): state, then current.priority, outcome.result and so on."""
    fields = json_output.slot_fields(queue, id, slot)
    yield "state", fields["state"]
    for part in ("current", "successor", "outcome"):
        if fields[part] is not None:
            yield from ((name, text) for name, text in _flatten(fields[part], f"{part}.") if name)


def _flatten(part: Mapping[str, Any], inside: str = "") -> Iterable[tuple[str, str]]:
    """Yield the fields of a part as (name, text), without empty fields.

    Names of nested fields are joined with dots: {"run": {"fence": 3}} gives ("run.fence", "3").
    """
    for name, value in part.items():
        if value is None or value in ({}, [], ""):
            continue
        if isinstance(value, dict) and "encoding" in value:
            if value["encoding"]:
                yield f"{inside}{name}", _format_encoded(value)
        elif isinstance(value, dict):
            yield from _flatten(value, f"{inside}{name}.")
        elif name == "traceback":
            yield f"{inside}{name}", ""
            yield from (("", line) for line in str(value).splitlines())
        else:
            yield f"{inside}{name}", f"{value[0]}..{value[1]}" if name == "revisions" else str(value)


def _format_encoded(value: Mapping[str, Any]) -> str:
    if value["encoding"] == "json":
        return json_output.encode_json_text(value["value"])
    return f"{value['value']} (base64)"


async def show_storage(url: str | None, output: Format) -> ExitCode:
    """Print a storage: its URL, durability, capabilities and queues, and the files of a file: URL."""
    async with connect(url) as storage:
        queues = sorted(without_reserved(await storage.queues()), key=lambda info: info.name)
        counted = await storage.counts([info.name for info in queues])
        files = _list_storage_files(storage)
        if output == "json":
            print_json(_storage_fields(storage, queues, counted, files))
        elif output == "lines":
            print_tab_separated([_queue_row(info, counted[info.name]) for info in queues])
        else:
            _print_storage(storage, queues, counted, files)
    return ExitCode.DONE


def _list_storage_files(storage: Storage) -> list[ListedFile] | None:
    folder = file_url_directory(storage.url)
    return None if folder is None else list_files(folder)


def _storage_fields(
    storage: Storage, queues: list[QueueInfo], counted: Mapping[str, Counts], files: list[ListedFile] | None
) -> dict[str, Any]:
    return {
        "url": storage.url,
        "durability": storage.durability,
        "capabilities": {name: getattr(storage.capabilities, name) for name in CAPABILITY_TEXTS},
        "queues": [
            {
                "name": info.name,
                "counts": json_output.count_fields(counted[info.name]),
                "settings": json_output.settings_fields(info.settings),
            }
            for info in queues
        ],
        "files": None if files is None else [{"path": entry.path, "bytes": entry.size} for entry in files],
    }


def _print_storage(
    storage: Storage, queues: list[QueueInfo], counted: Mapping[str, Counts], files: list[ListedFile] | None
) -> None:
    print_lines(f"storage     {storage.url}", f"durability  {storage.durability}", "", "capabilities:")
    print_lines(*(f"  {line}" for line in _capability_lines(storage.capabilities)))
    if not queues:
        print_lines("", "the storage has no queues")
    else:
        print_lines("", "queues:")
        rows = [_queue_row(info, counted[info.name]) for info in queues]
        print_table(QUEUE_COLUMNS, rows, optional=RARE_COLUMNS)
    if files is not None:
        print_lines(
            "", f"files ({sum(entry.size for entry in files):,} bytes in total):", *format_files(files)
        )


def _capability_lines(capabilities: Capabilities) -> list[str]:
    return [
        with_it if getattr(capabilities, name) else without_it
        for name, (with_it, without_it) in CAPABILITY_TEXTS.items()
    ]


QUEUE_STATES = ("waiting", "active", "blocked", "completed", "failed", "cancelled")
QUEUE_COLUMNS = ("queue", *(f"#{state}" for state in QUEUE_STATES), "settings")
#: Columns that the table leaves out while all of their cells are empty or 0.
RARE_COLUMNS = ("#blocked", "#cancelled", "settings")


def _queue_row(info: QueueInfo, counts: Counts) -> tuple[object, ...]:
    numbers = (getattr(counts, state) for state in QUEUE_STATES)
    return info.name, *numbers, changed_settings(info.settings)


async def _print_output(storage: Storage, queue: str, id: str, output: Format, *, follow: bool) -> None:
    """Print the chunks of an id, one a line. With `follow`, go on until the id has no job."""
    since: Mapping[str, str] | None = None
    after = ""
    while True:
        if follow:
            wake = await storage.wait([queue], for_="progress", ids=[id], since=since, timeout=0)
            since = wake.since
        (slot,) = await storage.get(queue, [id])
        while (page := await storage.events(queue, after=after, limit=PAGE_SIZE, id=id)).events:
            if page.fell_off:
                print_warning("chunks before these are missing: an id keeps at most 1 MiB of output")
            for offset, event in page.events:
                _print_chunk(offset, event, output)
            after = page.offset
        if not follow or slot.current is None:
            return
        await storage.wait([queue], for_="progress", ids=[id], since=since, timeout=POLL_INTERVAL)


def _print_chunk(offset: str, event: LogEvent, output: Format) -> None:
    kind, raw = split_chunk(event.result or b"")
    value, at = json_output.decode_stored(raw), json_output.format_time(event.at)
    if output == "json":
        fields = {"offset": offset, "at": at, "attempt": event.attempt, "kind": kind, "value": value}
        print_json(fields)
    elif output == "lines":
        print_tab_separated([(offset, at, event.attempt, _format_encoded(value))])
    elif kind == "log" and (record := record_text(value["value"])) is not None:
        first, *more = record.splitlines()
        time = value["value"].get("time", at)
        print_lines(escape(f"{time}  {event.attempt}  {first}"), *(escape(f"    {line}") for line in more))
    else:
        is_text = value["encoding"] == "json" and isinstance(value["value"], str)
        text = value["value"] if is_text else _format_encoded(value)
        print_lines(escape(f"{at}  {event.attempt}  {text}"))


# The brackets in the two metavars make one pair in the usage line: [QUEUE ID].
@click.command("show")
@click.argument(
    "queue", metavar="[QUEUE", required=False, help="Name of the queue.", shell_complete=complete_queue
)
@click.argument("id", metavar="ID]", required=False, help="Id of the job.")
@click.option("--output", "written", is_flag=True, help="Print what the runs of the job have written.")
@click.option("--follow", is_flag=True, help="With --output: go on until the id has no job.")
@options.url
@options.output
async def command(
    queue: str | None, id: str | None, *, written: bool, follow: bool, url: str | None, output: Format
) -> ExitCode:
    """Show one job: its current state, its blocked successor and the outcome of its last run.

    Without queue and id, describe the storage: its durability, capabilities, queues and files.
    Exit code 1 if the id does not exist.

    Examples:
        dibs show emails welcome-42 --url file:./jobs
        dibs show answers a-7 --output --follow --url file:./jobs
        dibs show --url file:./jobs
    """
    if follow and not written:
        raise UsageError("--follow is for --output; add it")
    if id is None and written:
        raise UsageError("--output needs a queue and an id: write dibs show QUEUE ID --output")
    if queue is None:
        return await show_storage(url, output)
    if id is None:
        raise UsageError(f"the id is missing: write dibs show {queue} ID; `dibs list {queue}` prints ids")
    async with connect(url) as storage:
        (slot,) = await storage.get(queue, [id])
        if written:
            await _print_output(storage, queue, id, output, follow=follow)
            return ExitCode.REFUSED if slot == EMPTY else ExitCode.DONE
    if output == "json":
        print_json(json_output.slot_fields(queue, id, slot))
    elif output == "lines":
        print_tab_separated(slot_lines(queue, id, slot))
    else:
        show_slot(queue, id, slot)
    return ExitCode.REFUSED if slot == EMPTY else ExitCode.DONE
