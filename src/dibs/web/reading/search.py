"""The search for an id in all queues, and for queues by a part of their name.

If no queue has the id, a scan looks for ids that begin with the text, and for jobs with it in their arguments
or their error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import frozen

from dibs.model.job import EMPTY, Slot
from dibs.model.results import Counts, State
from dibs.web.reading.job import slot_state
from dibs.web.reading.queue import Filter, job_row
from dibs.web.reading.source import Budget, Source, gather

#: Most queues in which one search looks.
MAX_QUEUES: Final = 2_000
#: Seconds after which a search returns the ids that it has found.
MAX_SECONDS: Final = 3.0
#: Most queues by name, and most jobs by the scan, that a search lists.
MAX_LISTED: Final = 50
#: Bounds of the scan: entries and seconds.
MAX_SCANNED: Final = 5_000
SCAN_SECONDS: Final = 1.0
#: Entries that one call of the scan reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100
#: States that together have all ids.
SCANNED_STATES: Final[tuple[State, ...]] = ("waiting", "active", "completed", "failed", "cancelled")


@frozen
class SearchMatch:
    """A job that the scan found."""

    queue: str
    id: str
    state: str
    #: The error or the arguments that have the text; "" if the id begins with it.
    shown: str


@frozen
class SearchScan:
    """The jobs that were found among the entries that a scan has read."""

    found: tuple[SearchMatch, ...]
    #: Number of entries that were read.
    read: int
    #: Number of queues that were read to their ends, and of all queues.
    whole: int
    queues: int


@frozen
class SearchPage:
    """The queues that have the id, the queues whose names contain the text, and the jobs of a scan."""

    text: str
    #: Queue and state of each id that was found.
    found: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    looked: int
    queues: int
    #: None if a queue has the id, unless the reader asks for the scan.
    scan: SearchScan | None


async def search(source: Source, params: Mapping[str, str]) -> SearchPage:
    """Look for the id `text` in all queues, with a call for each. Raises Refused for a bad id.

    If no queue has the id, or with the parameter `prefix`, scan the queues for it.
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
    scan = None
    if not found or params.get("prefix"):
        scan = await scan_queues(source, names, await source.census.counts(), text)
    return SearchPage(text, tuple(sorted(found.items())), named, looked, len(names), scan)


async def scan_queues(
    source: Source, names: Sequence[str], counts: Mapping[str, Counts], text: str
) -> SearchScan:
    """Read the lists of all queues in turns, a page of each, until their ends or the bounds of the scan.

    Short lists come first, because a long one would otherwise hide them: on Redis, the first page of a list
    with more than 1,000 ids copies all of them. States that are empty by `counts` are not read.
    """
    storage, budget = await source.storage(), Budget(MAX_SCANNED, SCAN_SECONDS)
    found: dict[tuple[str, str], SearchMatch] = {}
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
                matches = (_match(source, name, state, id, slot, text) for id, slot in page.items)
                found |= {(name, match.id): match for match in matches if match is not None}
                if page.after is not None:
                    left.append((name, state, page.after))
    listed = [match for _, match in sorted(found.items())[:MAX_LISTED]]
    whole = len(names) - len({name for name, _, _ in left})
    return SearchScan(tuple(listed), budget.read, whole, len(names))


def _match(source: Source, queue: str, state: State, id: str, slot: Slot, text: str) -> SearchMatch | None:
    if id.startswith(text):
        return SearchMatch(queue, id, slot_state(slot), "")
    if not Filter(text=text).selects(source, queue, id, slot, state):
        return None
    row = job_row(source, queue, id, slot, state)
    error = f"{row.error_type}: {row.message}"
    return SearchMatch(
        queue, id, slot_state(slot), error if text.casefold() in error.casefold() else row.arguments
    )
