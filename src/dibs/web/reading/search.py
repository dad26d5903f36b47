"""The search for an id in all queues, for ids by their beginning, and for queues by a part of their name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import frozen

from dibs.model.job import EMPTY
from dibs.model.results import Counts, State
from dibs.storage.protocol import Storage
from dibs.web.reading.job import slot_state
from dibs.web.reading.source import Budget, Source, gather

#: Most queues in which one search looks.
MAX_QUEUES: Final = 2_000
#: Seconds after which a search returns the ids that it has found.
MAX_SECONDS: Final = 3.0
#: Most queues by name, and most ids by their beginning, that a search lists.
MAX_LISTED: Final = 50
#: Bounds of the scan for ids by their beginning: entries and seconds.
MAX_SCANNED: Final = 5_000
SCAN_SECONDS: Final = 1.0
#: Entries that one call of the scan reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100
#: States that together have all ids.
SCANNED_STATES: Final[tuple[State, ...]] = ("waiting", "active", "completed", "failed", "cancelled")


@frozen
class PrefixScan:
    """The ids that begin with the text, among the entries that a scan has read."""

    #: Queue, id and state of each.
    found: tuple[tuple[str, str, str], ...]
    #: Number of entries that were read.
    read: int
    #: Number of queues that were read to their ends, and of all queues.
    whole: int
    queues: int


@frozen
class SearchPage:
    """The queues that have an id, ids that begin with it, and the queues whose names contain the text."""

    text: str
    #: Queue and state of each id that was found.
    found: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    looked: int
    queues: int
    #: None if the id itself was found, unless the reader asks for the scan.
    prefixed: PrefixScan | None


async def search(source: Source, params: Mapping[str, str]) -> SearchPage:
    """Look for the id `text` in all queues, with a call for each. Raises Refused for a bad id.

    If no queue has the id, or with the parameter `prefix`, scan the queues for ids that begin with it.
    """
    storage, text = await source.storage(), params.get("text", "")
    names = sorted(await source.census.queues())
    named = tuple(name for name in names if text.lower() in name.lower())[:MAX_LISTED]
    if not text:
        return SearchPage(text, (), (), 0, len(names), None)
    found: dict[str, str] = {}
    looked = 0

    async def look(queue: str) -> None:
        nonlocal looked
        [slot] = await storage.get(queue, [text])
        looked += 1
        if slot != EMPTY:
            found[queue] = slot_state(slot)

    try:
        async with asyncio.timeout(MAX_SECONDS):
            await gather(names[:MAX_QUEUES], look)
    except TimeoutError:
        pass
    prefixed = None
    if not found or params.get("prefix"):
        prefixed = await scan_prefix(storage, names, await source.census.counts(), text)
    return SearchPage(text, tuple(sorted(found.items())), named, looked, len(names), prefixed)


async def scan_prefix(
    storage: Storage, names: Sequence[str], counts: Mapping[str, Counts], prefix: str
) -> PrefixScan:
    """Read the lists of all queues in turns, a page of each, until their ends or the bounds of the scan.

    Short lists come first, because a long one would otherwise hide them: on Redis, the first page of a list
    with more than 1,000 ids copies all of them. States that are empty by `counts` are not read.
    """
    budget = Budget(MAX_SCANNED, SCAN_SECONDS)
    found: dict[tuple[str, str], str] = {}
    left: list[tuple[str, State, str | None]] = [
        (name, state, None)
        for name in names
        for state in SCANNED_STATES
        if name not in counts or getattr(counts[name], state)
    ]
    left.sort(key=lambda each: getattr(counts[each[0]], each[1]) if each[0] in counts else 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(SCAN_SECONDS):
            while left and not budget.is_spent and len(found) < MAX_LISTED:
                name, state, cursor = left[0]
                page = await budget.list(storage, name, state, after=cursor, limit=PAGE_SIZE)
                del left[0]
                found |= {(name, id): slot_state(slot) for id, slot in page.items if id.startswith(prefix)}
                if page.after is not None:
                    left.append((name, state, page.after))
    listed = sorted(found.items())[:MAX_LISTED]
    whole = len(names) - len({name for name, _, _ in left})
    return PrefixScan(tuple((*key, state) for key, state in listed), budget.read, whole, len(names))
