"""What `dibs show` tells a person: an id part by part, and a place from its URL down to its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dibs.cli import shapes
from dibs.cli.files import Entry, entries_of, folder_of, lines_of
from dibs.cli.output import Code, say, table, write_json
from dibs.cli.place import opened
from dibs.model.job import EMPTY, Slot
from dibs.model.results import Counts, QueueInfo
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage

#: What each capability means to whoever uses the place, if it is there and if it is not.
ABILITIES = {
    "durable": ("survives the death of every process that uses it", "dies with its process"),
    "shared": ("several processes may open it at once", "one process at a time"),
    "cross_queue": (
        "follow-ups of a job may go to other queues in the same step",
        "follow-ups of a job stay in its queue",
    ),
    "blocking_claim": (
        "a worker's claim can wait with it, and picks up a job at once",
        "a worker asks for a job when it hears of it",
    ),
    "transactions": ("an enqueue can join a transaction of yours", "an enqueue is a step of its own"),
    "push_wakeups": ("waiters are woken by a change", "waiters poll"),
    "manual_clock": ("can be opened with a clock of your own, for tests", "has only its own clock"),
}


def show_slot(queue: str, id: str, slot: Slot) -> None:
    """Print all there is of one id."""
    if slot == EMPTY:
        say(f"nothing is known of {queue}/{id}")
        return
    told = shapes.slot(queue, id, slot)
    say(f"{queue}/{id} is {told['state']}")
    for part in ("current", "successor", "outcome"):
        if told[part] is not None:
            say("", f"{part}:")
            say(*(f"  {name:<16} {value}" for name, value in _facts(told[part])))
    if slot.dropped:
        say("", "dropped ranges:", *(f"  {first}..{last}" for first, last in slot.dropped))


def _facts(part: Mapping[str, Any], inside: str = "") -> Iterable[tuple[str, str]]:
    """Flatten what there is to tell, and leave out what is empty."""
    for name, value in part.items():
        if value is None or value in ({}, [], ""):
            continue
        if isinstance(value, dict) and "encoding" in value:
            if value["encoding"]:
                yield f"{inside}{name}", _encoded(value)
        elif isinstance(value, dict):
            yield from _facts(value, f"{inside}{name}.")
        elif name == "traceback":
            yield f"{inside}{name}", ""
            yield from (("", line) for line in str(value).splitlines())
        else:
            yield f"{inside}{name}", f"{value[0]}..{value[1]}" if name == "revisions" else str(value)


def _encoded(value: Mapping[str, Any]) -> str:
    if value["encoding"] == "json":
        return shapes.json_text(value["value"])
    return f"{value['value']} (base64)"


async def show_place(url: str | None, *, json: bool) -> Code:
    """Explain a place: its URL, what it promises, its queues, and for a directory the files in it."""
    async with opened(url) as storage:
        queues = sorted(await storage.queues(), key=lambda info: info.name)
        counted = await storage.counts([info.name for info in queues])
        files = _files(storage)
        if json:
            write_json(_place(storage, queues, counted, files))
        else:
            _explain(storage, queues, counted, files)
    return Code.DONE


def _files(storage: Storage) -> list[Entry] | None:
    folder = folder_of(storage.url)
    return None if folder is None else entries_of(folder)


def _place(
    storage: Storage, queues: list[QueueInfo], counted: Mapping[str, Counts], files: list[Entry] | None
) -> dict[str, Any]:
    return {
        "url": storage.url,
        "durability": storage.durability,
        "capabilities": {name: getattr(storage.capabilities, name) for name in ABILITIES},
        "queues": [
            {
                "name": info.name,
                "counts": shapes.counts(counted[info.name]),
                "settings": shapes.settings(info.settings),
            }
            for info in queues
        ],
        "files": None if files is None else [{"path": entry.path, "bytes": entry.size} for entry in files],
    }


def _explain(
    storage: Storage, queues: list[QueueInfo], counted: Mapping[str, Counts], files: list[Entry] | None
) -> None:
    say(f"place       {storage.url}", f"durability  {storage.durability}", "", "what it can do:")
    say(*(f"  {line}" for line in _abilities(storage.capabilities)))
    if not queues:
        say("", "no queue was ever used here")
    else:
        say("", "queues:")
        table(QUEUE_COLUMNS, [_queue_row(info, counted[info.name]) for info in queues])
    if files is not None:
        say(f"files, {sum(entry.size for entry in files):,} bytes in all:", *lines_of(files))


def _abilities(abilities: Capabilities) -> list[str]:
    return [yes if getattr(abilities, name) else no for name, (yes, no) in ABILITIES.items()]


QUEUE_STATES = ("waiting", "active", "blocked", "completed", "failed", "cancelled")
QUEUE_COLUMNS = ("queue", *(f"#{state}" for state in QUEUE_STATES), "paused", "#max active", "log")


def _queue_row(info: QueueInfo, counts: Counts) -> tuple[object, ...]:
    settings = info.settings
    numbers = (getattr(counts, state) for state in QUEUE_STATES)
    most = "any" if settings.max_active is None else settings.max_active
    return info.name, *numbers, "yes" if settings.paused else "no", most, settings.log_level
