"""A probe of the offsets of a log: a reader gets each event once, also if the clock stands still."""

from __future__ import annotations

from typing import Final

from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

NOW: Final = 1_767_225_600_000
#: Single changes of one job, a call that logs three events, and single changes of another job.
CHANGES: Final = (
    "enqueue a; amend a attributes=n:0; amend a attributes=n:1; amend a attributes=n:2; "
    "enqueue b c d payload=1; forget c; "
    "enqueue e; amend e attributes=n:0; amend e attributes=n:1; amend e attributes=n:2"
)
#: The ids of their events, in order.
LOGGED: Final = "aaaabcdceeee"
#: The sizes of the pages, in events.
PAGES: Final = (1, 2, 3)


async def check_log_pages(storage: Storage) -> tuple[int, list[str]]:
    """Log events with equal times, and read them in small pages.

    A reader with pages of each size, and one that begins at each offset, must get the events in their order.
    Most events come from an amend, which draws no seq, revision or fence from which an offset could be made.
    """
    calls = HistoryCalls("q")
    await play_steps(storage, calls, "set log_level=all", now=NOW)
    begin = (await storage.events("q", limit=1, now=NOW)).offset
    await play_steps(storage, calls, CHANGES, now=NOW)
    ids = list(LOGGED)
    wrong = [
        f"pages of {size} events have the events of {found}; expected {ids}"
        for size in PAGES
        if (found := await read_pages(storage, begin, size, len(ids) + 2)) != ids
    ]
    page = await storage.events("q", after=begin, limit=len(ids) + 2, now=NOW)
    for position, (offset, _) in enumerate(page.events, start=1):
        rest = await storage.events("q", after=offset, limit=len(ids) + 2, now=NOW)
        found, expected = [event.id for _, event in rest.events], ids[position:]
        if found != expected:
            wrong.append(f"after event {position} a read has the events of {found}; expected {expected}")
    return len(PAGES) + len(page.events), wrong


async def read_pages(storage: Storage, offset: str, size: int, most: int) -> list[str]:
    """Return the ids of the events after an offset, in pages of `size` events and at most `most` pages."""
    found: list[str] = []
    for _ in range(most):
        page = await storage.events("q", after=offset, limit=size, now=NOW)
        if not page.events:
            break
        found += [event.id for _, event in page.events]
        offset = page.offset
    return found
