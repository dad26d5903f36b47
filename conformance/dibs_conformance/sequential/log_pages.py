"""A probe of the offsets of a log: a reader gets each event once, also if the clock stands still."""

from __future__ import annotations

from typing import Final

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, JobPatch, SettingsPatch
from dibs.storage.protocol import Storage

NOW: Final = 1_767_225_600_000
#: Number of single changes before and after a call that logs several events.
CHANGES: Final = 3
#: The sizes of the pages, in events.
PAGES: Final = (1, 2, 3)


async def check_log_pages(storage: Storage) -> tuple[int, list[str]]:
    """Log events with equal times, and read them in small pages.

    A reader with pages of each size, and one that begins at each offset, must get the events in their order.
    Most events come from an amend, which draws no seq, revision or fence from which an offset could be made.
    """
    await storage.configure("q", SettingsPatch(log_level="all"), now=NOW)
    begin = (await storage.events("q", limit=1, now=NOW)).offset
    ids = [*await log_changes(storage, "a"), *await log_batch(storage), *await log_changes(storage, "e")]
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


async def log_changes(storage: Storage, first: str) -> list[str]:
    """Enqueue one job and amend it in single calls. Return the ids of their events, in order."""
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=first))], now=NOW)
    for change in range(CHANGES):
        await storage.amend("q", first, JobPatch(attributes={"change": b"%d" % change}), now=NOW)
    return [first] * (1 + CHANGES)


async def log_batch(storage: Storage) -> list[str]:
    """Enqueue three jobs in one call, and forget one of them. Return the ids of their events, in order."""
    ids = ["b", "c", "d"]
    data = JobData(payload=b"1")
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids], now=NOW)
    await storage.forget("q", ["c"], now=NOW)
    return [*ids, "c"]


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
