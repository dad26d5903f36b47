"""Pages of a log whose entries have many events each: a page reads only the entries that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.model.events import LogEvent
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done

#: Events of each entry.
ENTRIES = (1, 20, 20, 3, 20)
IDS = [f"{number:02}" for number in range(sum(ENTRIES))]


@pytest.fixture
async def logged(storage: PostgresStorage) -> PostgresStorage:
    """A storage whose queue `q` has a log entry of each size."""
    await storage.enqueue("q", [asked(id) for id in IDS])
    for count in ENTRIES:
        await storage.settle("q", [done(job) for job in await claimed(storage, "q", count)])
    return storage


async def read(storage: PostgresStorage, limit: int) -> list[tuple[str, LogEvent]]:
    """Return the whole log, read in pages."""
    found: list[tuple[str, LogEvent]] = []
    after = None
    while (page := await storage.events("q", after=after, limit=limit)).events:
        assert len(page.events) <= limit
        found += page.events
        after = page.offset
    return found


async def test_pages_of_each_size_have_the_same_events(logged: PostgresStorage) -> None:
    whole = await read(logged, 1000)

    assert sorted(IDS) == sorted(event.id for _, event in whole)
    for limit in range(1, len(IDS) + 1):
        assert whole == await read(logged, limit)


async def test_each_page_but_the_last_is_full(logged: PostgresStorage) -> None:
    offsets = [offset for offset, _ in await read(logged, 1000)]

    for start, after in enumerate([None, *offsets]):
        page = await logged.events("q", after=after, limit=10)
        assert min(10, len(IDS) - start) == len(page.events)


@pytest.mark.parametrize(
    ("place", "most", "entries"),
    [(-1, 1, 1), (-1, 2, 2), (-1, 21, 2), (-1, 22, 3), (0, 1, 2), (1, 20, 2), (1, 21, 3), (4, 1000, 1)],
)
async def test_a_page_reads_the_entries_that_it_needs(
    logged: PostgresStorage, connect: Callable[[], Any], place: int, most: int, entries: int
) -> None:
    """Read from the start, or from the entry at a place, which the reader may have read in part."""
    connection = await connect()
    numbers = [n async for (n,) in await connection.execute("SELECT n FROM events ORDER BY n")]
    since = 0 if place < 0 else numbers[place]

    found = await connection.execute("SELECT count(*) FROM read_events('q', %s, %s, NULL)", [since, most])

    assert (entries,) == await found.fetchone()


async def test_an_empty_log_has_one_row(storage: PostgresStorage, connect: Callable[[], Any]) -> None:
    await storage.enqueue("q", [asked("a")])
    connection = await connect()

    for since in (None, 0):
        found = await connection.execute("SELECT * FROM read_events('q', %s, 10, NULL)", [since])
        assert [(0, None, None, None)] == await found.fetchall()
