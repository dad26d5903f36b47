"""Many queues: a page counts the queues that it shows, and the others in bounded steps."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dibs import Dibs
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading import census
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


async def test_a_slow_storage_is_counted_in_steps(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first view counts its own 50 queues and takes one step of 50 others."""
    app, storage = many
    monkeypatch.setattr(census, "STEP_SECONDS", 0.0)
    async with browse(dibs_web(app)) as browser:
        first = await browser.text("/")
        assert 2 == storage.calls.count("counts")
        assert "200 not counted yet" in first
        assert '<td class="num" data-label="Waiting">1</td>' in first

    monkeypatch.undo()
    async with browse(dibs_web(app)) as browser:
        assert "300" == await waiting(browser)


async def test_pages_about_all_queues_wait_until_each_is_counted(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = many
    monkeypatch.setattr(census, "STEP_SECONDS", 1e-9)
    monkeypatch.setattr(census, "FIRST_CALL", 1)
    async with browse(dibs_web(app)) as browser:
        page = await browser.text("/place")

    assert "<dt>waiting</dt><dd>300</dd>" in page


async def test_idle_queues_cost_no_read_of_their_logs(many: tuple[Dibs, CountingStorage]) -> None:
    app, storage = many
    storage.calls.clear()
    async with browse(dibs_web(app)) as browser:
        await browser.text("/")
        await browser.text("/", page="2")

    assert 0 == storage.calls.count("events")
    assert storage.calls.count("counts") <= 4


async def test_a_queue_that_was_removed_is_no_longer_counted(many: tuple[Dibs, CountingStorage]) -> None:
    app, _ = many
    counted = census.Census(app.queue("q")._client.bounded_storage)
    await counted.counts(seconds=5)
    counted._counts["gone"] = counted._counts["queue-001"]
    counted.forget()
    await counted.counts(seconds=5)

    assert "gone" not in counted.known
    assert 0 == counted.uncounted
