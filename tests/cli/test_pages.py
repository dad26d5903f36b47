"""Pages of a storage that ends them early."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dibs.cli.storage_access import read_page
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import ListPage, State
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage


class ShortPages:
    """A storage in memory whose pages have up to 3 jobs; the first one has none."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def list(self, queue: str, state: State, *, after: str | None, limit: int) -> ListPage:
        if after is None:
            return ListPage(items=(), after="first")
        after = None if after == "first" else after
        page: ListPage = await self.storage.list(queue, state, after=after, limit=min(limit, 3))
        return page


@pytest.mark.parametrize(("limit", "expected"), [(4, 4), (8, 8), (100, 10)])
async def test_short_pages_are_read_up_to_the_limit(limit: int, expected: int) -> None:
    async with open_storage("memory:") as storage:
        requests = [EnqueueRequest(job=NewJob(id=str(number))) for number in range(10)]
        await storage.enqueue("q", requests)
        short: Any = ShortPages(storage)
        page = await read_page(cast("Storage", short), "q", "waiting", after=None, limit=limit)
        rest = [] if page.after is None else (await storage.list("q", "waiting", after=page.after)).items

    assert expected == len(page.items)
    assert 10 == len({id for id, _ in (*page.items, *rest)})
