"""A queue that is too long for a list of all its ids: the storage returns short pages, and equal ones."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from dibs import Dibs, Queue
from dibs.model.results import ListPage, State
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.pages import FILTERED_PERIOD, Pages
from dibs.web.reading.source import Source
from tests.web.conftest import browse
from tests.web.jobs import CountingStorage, storage_of

#: Redis lists up to 1,000 ids in order.
LONG = 1_100
NEXT = re.compile(r'href="([^"]+)">(?:Next page|Read on)<')


@pytest.fixture
async def long_queue(any_queue: Queue) -> Queue:
    await any_queue.enqueue_many([any_queue.bind({}, id=f"job-{number:04}") for number in range(LONG)])
    return any_queue


async def read_pages(app: Dibs, address: str) -> list[list[str]]:
    """Return the ids of each page, from the first one on."""
    pages: list[list[str]] = []
    async with browse(dibs_web(app, allow="read")) as reader:
        while address:
            text = await reader.text(address)
            pages.append(re.findall(r'<tr data-key="j-([^"]+)"', text))
            found = NEXT.search(text)
            address = html.unescape(found[1]) if found else ""
    return pages


async def test_the_pages_have_each_job_once(
    any_app: Dibs, long_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.web.reading.queue.PAGE_SIZE", 200)
    pages = await read_pages(any_app, f"/queue?name={long_queue.name}&state=waiting")

    assert [200] * 5 + [100] == [len(page) for page in pages]
    assert LONG == len({id for page in pages for id in page})


async def test_two_readings_of_a_long_queue_are_equal(long_queue: Queue) -> None:
    """The dashboard sends a page to its viewers only if it differs from the page before."""
    storage = await storage_of(long_queue)
    # Redis moves a table that has just grown to a larger one in small steps, one with each read.
    pages = [await storage.list(long_queue.name, "waiting", limit=25) for _ in range(200)]

    assert pages[-1] == pages[-2]


class ShortPages(CountingStorage):
    """A storage whose pages have up to 7 jobs, and every second one has none."""

    async def list(
        self, queue: str, state: State, *, after: str | None = None, limit: int = 100, **rest: Any
    ) -> ListPage:
        self.calls.append("list")
        if self.calls.count("list") % 2:
            return ListPage(items=(), after=after or "first")
        after = None if after == "first" else after
        page: ListPage = await self.storage.list(queue, state, after=after, limit=min(limit, 7), **rest)
        return page


async def test_short_pages_of_a_storage_fill_a_page() -> None:
    """A storage may end a page before it is full, also with no job on it."""
    app = Dibs("memory:")
    with app.override_storage(ShortPages(open_storage("memory:"))):
        async with app:
            await app.queue("q").enqueue_many([app.queue("q").bind({}, id=f"{n:02}") for n in range(30)])
            pages = await read_pages(app, "/queue?name=q&state=waiting")

    assert [25, 5] == [len(page) for page in pages]


def test_a_filtered_list_is_read_less_often() -> None:
    pages = Pages(Source(Dibs("memory:")))
    plain = pages.key("queue", {"name": "q", "state": "waiting"})

    assert pages.period(plain) == pages.kinds["queue"].period
    for param in ("prefix", "attr"):
        assert FILTERED_PERIOD == pages.period(pages.key("queue", {"name": "q", param: "x"}))
