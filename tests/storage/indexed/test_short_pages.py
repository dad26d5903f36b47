"""A page of a listing reads a bounded number of ids, so it may be short, and the pages have each id once."""

from __future__ import annotations

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import State
from dibs.storage.indexed import reading
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage


async def pages_of(storage: Storage, state: State, limit: int) -> list[list[str]]:
    pages, after = list[list[str]](), None
    while True:
        page = await storage.list("q", state, after=after, limit=limit)
        pages.append([id for id, _ in page.items])
        if (after := page.after) is None:
            return pages


async def test_a_rare_state_has_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_READ", 10)
    async with open_storage("memory:") as storage:
        jobs = [NewJob(id=f"{n:03}", delay=60_000 if n % 25 == 0 else 0) for n in range(100)]
        await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])

        scheduled = await pages_of(storage, "scheduled", 5)
        waiting = await pages_of(storage, "waiting", 7)

    assert ["000", "025", "050", "075"] == [id for page in scheduled for id in page]
    assert 10 == len(scheduled)
    assert [f"{n:03}" for n in range(100)] == [id for page in waiting for id in page]


@pytest.mark.parametrize("state", ["scheduled", "active", "completed", "failed", "cancelled"])
async def test_a_state_without_ids_is_read_at_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_READ", 10)
    async with open_storage("memory:") as storage:
        assert isinstance(storage, MemoryStorage)
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{n:03}")) for n in range(100)])
        pages = await pages_of(storage, state, 5)

    assert [[]] * (10 if state == "scheduled" else 1) == pages
