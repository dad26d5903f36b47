"""Operations of the test clients that are not one call of a verb.

Most are readings of several pages: a whole listing, a whole export, and the log from an offset to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.results import EventPage, State
from dibs.storage.compaction import Compaction
from dibs.storage.protocol import Storage

#: Limit on the pages of a reading, so that a storage whose pages never end cannot hang the tests. No example
#: fills so many pages.
MAX_PAGES = 100
#: The number of parts into which `split` divides an export.
PARTS = 2


async def read_list(
    storage: Storage, queue: str, state: State, *, limit: int = 100, now: int | None = None
) -> list[tuple[str, Slot]]:
    """Return all ids in a state."""
    found: list[tuple[str, Slot]] = []
    after: str | None = None
    for _ in range(MAX_PAGES):
        page = await storage.list(queue, state, after=after, limit=limit, now=now)
        found += page.items
        after = page.after
        if after is None:
            return found
    raise EndlessPages(f"list of {queue!r} does not end after {MAX_PAGES} pages")


async def read_export(
    storage: Storage, queue: str, *, limit: int = 100, after: str | None = None, until: str | None = None
) -> list[tuple[str, Slot]]:
    """Return all ids of an export, or of the part of it between two cursors."""
    found: list[tuple[str, Slot]] = []
    for _ in range(MAX_PAGES):
        page = await storage.export(queue, after=after, until=until, limit=limit)
        found += [(record.id, record.slot) for record in page.records]
        after = page.after
        if after is None:
            return found
    raise EndlessPages(f"export of {queue!r} does not end after {MAX_PAGES} pages")


async def read_split(storage: Storage, queue: str, *, limit: int = 100) -> list[tuple[str, Slot]]:
    """Return all ids of an export that is read in parts, the last part first."""
    cursors: Sequence[str | None] = [None, *await storage.split(queue, PARTS), None]
    found: list[tuple[str, Slot]] = []
    for after, until in reversed([*pairwise(cursors)]):
        found += await read_export(storage, queue, limit=limit, after=after, until=until)
    return found


async def read_events(
    storage: Storage, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
) -> EventPage:
    """Read the log from an offset to its end. Return all events, and the offset of the last page."""
    found: list[tuple[str, LogEvent]] = []
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=after, limit=limit, now=now)
        found += page.events
        after = page.offset
        if not page.events:
            return EventPage(events=tuple(found), offset=page.offset)
    raise EndlessPages(f"the log of {queue!r} does not end after {MAX_PAGES} pages")


async def compact(storage: Storage, _: str, *, now: int) -> None:
    """Call `compact` of the storage, if it has this method."""
    del now
    if isinstance(storage, Compaction):
        await storage.compact()


class EndlessPages(Exception):
    """Raised if a reading has more than `MAX_PAGES` pages."""


#: Operations of the test clients that are not one call of a verb.
PAGE_READS: dict[str, Any] = {
    "list": read_list,
    "export": read_export,
    "split": read_split,
    "events": read_events,
    "compact": compact,
}
