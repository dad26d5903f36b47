"""Many queues: a page counts the queues that it shows, and the others in bounded steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dibs import Dibs
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading import shared
from dibs.web.reading.shared import Census
from tests.web.conftest import Browser, browse
from tests.web.jobs import CountingStorage


@pytest.fixture
async def many() -> AsyncIterator[tuple[Dibs, CountingStorage]]:
    """An app with 300 queues of one job each."""
    app = Dibs("memory:")
    storage = CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app:
            for number in range(300):
                await app.queue(f"queue-{number:03}").enqueue({})
            yield app, storage


async def waiting(browser: Browser) -> str:
    page = await browser.text("/")
    return page.partition("<h2>Waiting</h2>")[2].partition("</p>")[0].rpartition(">")[2]


@pytest.mark.usefixtures("unexamined")
async def test_the_first_page_waits_for_its_own_queues_only(many: tuple[Dibs, CountingStorage]) -> None:
    """The others are counted in the background, and a later page has them."""
    app, storage = many
    storage.calls.clear()
    # The first count is that of the queues of the page. The listing is that of the workers.
    go_on = asyncio.Event()
    storage.held["counts"] = (1, go_on)
    async with browse(dibs_web(app, allow="read")) as browser:
        first = await browser.text("/")
        calls = Counter(storage.calls)

        assert "250 not counted yet" in first
        assert '<td class="num" data-label="Waiting">1</td>' in first
        assert {"queues": 1, "counts": 2, "list": 1} == dict(calls)

        go_on.set()
        async with asyncio.timeout(30):
            while "300" != await waiting(browser):  # noqa: ASYNC110 - the page has no event
                await asyncio.sleep(0.6)


async def test_the_count_goes_on_without_a_page_until_each_queue_has_one(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, storage = many
    monkeypatch.setattr(shared, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(shared, "FIRST_CALL", 20)
    counted = Census(app.queue("q")._client.bounded_storage)
    storage.calls.clear()
    await counted.counts(["queue-000"])
    async with asyncio.timeout(30):
        # The census has no event for its end.
        while counted.uncounted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert 1 + 15 == storage.calls.count("counts")


async def test_pages_about_all_queues_wait_until_each_is_counted(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = many
    monkeypatch.setattr(shared, "STEP_SECONDS", 1e-9)
    monkeypatch.setattr(shared, "FIRST_CALL", 1)
    async with browse(dibs_web(app, allow="read")) as browser:
        page = await browser.text("/place")

    assert "<dt>waiting</dt><dd>300</dd>" in page


@pytest.mark.usefixtures("unexamined")
async def test_idle_queues_cost_no_read_of_their_logs(many: tuple[Dibs, CountingStorage]) -> None:
    app, storage = many
    storage.calls.clear()
    async with browse(dibs_web(app, allow="read")) as browser:
        await browser.text("/")
        await browser.text("/", page="2")

    assert 0 == storage.calls.count("events")
    assert storage.calls.count("counts") <= 4


async def test_a_queue_that_was_removed_is_no_longer_counted(many: tuple[Dibs, CountingStorage]) -> None:
    app, _ = many
    counted = Census(app.queue("q")._client.bounded_storage)
    await counted.counts(seconds=5)
    counted._counts["gone"] = counted._counts["queue-001"]
    counted.forget()
    await counted.counts(seconds=5)

    assert "gone" not in counted.known
    assert 0 == counted.uncounted
