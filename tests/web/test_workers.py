"""The page of workers: idle and busy ones by their records, and holders without a record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from dibs import Dibs
from dibs.version import VERSION
from dibs.web import dibs_web
from dibs.web.reading import workers as reading
from tests.web.conftest import Browser, browse
from tests.web.jobs import claim

#: Set to let the job of a worker end.
GO_ON: dict[str, asyncio.Event] = {}


async def hold(key: str) -> None:
    await GO_ON[key].wait()


async def seen(browser: Browser, text: str) -> str:
    """Return the page of workers once it has a text. A reading is shared for a while."""
    async with asyncio.timeout(60):
        while text not in (page := await browser.text("/workers")):  # noqa: ASYNC110 - the page has no event
            await asyncio.sleep(0.02)
    return page


@pytest.fixture
async def served(any_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Dibs, Browser]]:
    """An app with an idle worker, and a browser."""
    monkeypatch.setattr(reading, "RECORDS_AGE", 0.1)
    app = Dibs(any_url)
    app.task(queue="hold")(hold)
    async with app, browse(dibs_web(app, allow="read")) as browser:
        work = asyncio.create_task(app.work(handle_signals=False, name="worker-7"))
        yield app, browser
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def test_an_idle_worker_is_listed_with_its_version_and_queues(served: tuple[Dibs, Browser]) -> None:
    _, browser = served

    page = await seen(browser, "worker-7")

    assert '<span class="state s-idle">idle</span>' in page
    assert f"dibs {VERSION}, Python" in page
    assert 'serves <a href="/queue?name=hold">' in page
    assert '<h2>Workers</h2><p class="big">1</p>' in await browser.text("/")


async def test_a_busy_worker_is_listed_with_its_jobs(served: tuple[Dibs, Browser]) -> None:
    app, browser = served
    GO_ON["busy"] = asyncio.Event()
    await app.get_task("hold").options(id="held-job").enqueue("busy")

    page = await seen(browser, '<span class="state s-active">busy</span>')
    GO_ON["busy"].set()

    assert "/job?queue=hold&amp;id=held-job" in page


async def test_a_holder_without_a_record_is_listed(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as browser:
        await app.queue("q").enqueue({}, id="held-job")
        await claim(app.queue("q"))

        page = await browser.text("/workers")

    assert "0 workers, 1 other holder of jobs" in page
    assert "no record" in page
    assert "host:1" in page


async def test_a_worker_that_misses_refreshes_is_marked(
    served: tuple[Dibs, Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, browser = served
    monkeypatch.setattr(reading, "MISSED_REFRESHES", 0.0)

    assert "silent</span>" in await seen(browser, "worker-7")
