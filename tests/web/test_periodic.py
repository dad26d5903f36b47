"""The page of periodic tasks: next and last runs, run now, and pause, on each storage."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from dibs import Dibs, Queue
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, SettleAction
from dibs.version import VERSION
from dibs.web import dibs_web
from dibs.web.reading import periodic, story
from dibs.web.reading import workers as reading
from tests.web.conftest import Browser, browse, may
from tests.web.jobs import claim, end, slot_of, storage_of

HOUR_MS = 3_600_000


async def clean() -> None: ...


@pytest.fixture
async def app(any_url: str) -> AsyncIterator[Dibs]:
    """An app with one periodic task."""
    async with Dibs(any_url) as app:
        app.task(queue="clean", every="2h")(clean)
        yield app


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("clean")


@pytest.fixture
async def writer(app: Dibs) -> AsyncIterator[Browser]:
    async with browse(dibs_web(app, allow=may("write"))) as browser:
        yield browser


def cell(page: str, label: str) -> str:
    """Return the cell of the only row."""
    return page.partition(f'<td data-label="{label}"')[2].partition("</td>")[0]


async def test_the_next_three_ticks_are_listed(writer: Browser, queue: Queue) -> None:
    await queue.enqueue({}, id="schedule", delay=7200)
    slot = await slot_of(queue, "schedule")
    assert slot.current is not None

    page = await writer.text("/periodic")
    ticks = [int(ms) for ms in re.findall(r'data-age="(\d+)"', cell(page, "Next runs"))]

    assert "every 2 h" in page
    first = (slot.current.run_at // (2 * HOUR_MS) + 1) * 2 * HOUR_MS
    assert [slot.current.run_at, first, first + 2 * HOUR_MS] == ticks


async def test_the_last_runs_come_from_the_log(writer: Browser, queue: Queue) -> None:
    broken = Fail(error=Error(type="shop.Broken", message="secret 42"))
    actions: list[SettleAction] = [Complete(), broken, *[Complete()] * 5]
    for action in actions:
        await end(queue, "schedule", action, {})
    await end(queue, "another-id", broken, {})

    page = cell(await writer.text("/periodic"), "Last runs")
    await end(queue, "schedule", broken, {})
    await writer.post("pause", {"queue": "clean"})
    later = cell(await writer.text("/periodic"), "Last runs")

    # The latest run is the outcome, and a run of the list.
    assert 5 == page.count("s-completed")
    assert "shop.Broken" not in page
    assert [1, 4] == [later.count(f"s-{kind}") for kind in ("failed", "completed")]
    assert "shop.Broken" in later
    assert "secret" not in later


async def test_a_long_log_is_read_in_steps(
    writer: Browser, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, "schedule", Complete(), {})
    for number in range(3):
        await end(queue, f"job-{number}", Complete(), {})
    monkeypatch.setattr(story, "MAX_EVENTS", 2)
    monkeypatch.setattr(story, "PAGE_SIZE", 2)

    pages = []
    for _ in range(2):
        pages.append("The log was read in part" in await writer.text("/periodic"))
        # A write begins a new reading.
        await writer.post("resume", {"queue": "clean"})
    last = await writer.text("/periodic")

    assert [True, True] == pages
    assert "The log was read in part" not in last


async def test_run_now_makes_the_next_tick_due(writer: Browser, queue: Queue) -> None:
    await queue.enqueue({}, id="schedule", delay=7200)

    before = await writer.text("/periodic")
    answer = await writer.post("run_now", {"queue": "clean", "id": "schedule"}, {"from": "periodic"})
    slot = await slot_of(queue, "schedule")

    assert 'aria-label="Run now: clean"' in before
    assert "/periodic?did=due" == answer.headers["location"]
    assert slot.current is not None
    assert slot.current.run_at <= time.time() * 1000 + 60_000
    assert "The job is due now." in await writer.text("/periodic", did="due")


async def test_a_paused_task_offers_to_resume(writer: Browser, queue: Queue) -> None:
    await queue.enqueue({}, id="schedule", delay=7200)

    await writer.post("pause", {"queue": "clean"}, {"from": "periodic"})
    paused = await writer.text("/periodic")
    stored = {info.name: info.settings.paused for info in await (await storage_of(queue)).queues()}
    await writer.post("resume", {"queue": "clean"}, {"from": "periodic"})
    resumed = await writer.text("/periodic")

    assert stored["clean"]
    assert 'aria-label="Resume: clean"' in paused
    assert "Run now" not in paused
    assert 'aria-label="Pause: clean"' in resumed
    assert 'aria-label="Run now: clean"' in resumed


async def test_schedules_made_at_run_time_have_a_row_each(writer: Browser, app: Dibs) -> None:
    task = app.get_task("clean")
    await task.schedule("tenant <7>", every=HOUR_MS / 1000)
    await task.schedule("night", cron="0 3 * * *", tz="Asia/Tokyo")
    await app.queue("clean").enqueue({}, id="schedule:plain", delay=60)

    listed = await writer.text("/periodic")
    ids = {"queue": "clean", "id": "schedule:tenant <7>"}
    answers = [(await writer.post("pause_schedule", ids)).headers["location"]]
    paused = await writer.text("/periodic")
    actions = ("resume_schedule", "remove_schedule", "remove_schedule")
    answers += [(await writer.post(action, ids)).headers["location"] for action in actions]
    after = await writer.text("/periodic")

    assert "3 schedules" in listed
    assert "0 3 * * * in Asia/Tokyo" in listed
    assert 'aria-label="Pause: clean tenant &lt;7&gt;"' in listed
    assert "schedule:plain" not in listed
    assert 'aria-label="Resume: clean tenant &lt;7&gt;"' in paused
    codes = ("schedule_paused", "schedule_resumed", "schedule_removed", "no_schedule")
    assert [f"/periodic?did={code}" for code in codes] == answers
    assert "2 schedules" in after


async def test_a_page_shows_the_next_schedules_of_many(
    writer: Browser, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "MAX_ROWS", 2)
    monkeypatch.setattr(periodic, "MAX_SCHEDULED", 3)
    for number in range(5):
        await app.get_task("clean").schedule(str(number), every=HOUR_MS / 1000)
    page = await writer.text("/periodic")

    assert "4 schedules, of which the next 2 are shown; a queue with many jobs was read in part" in page


async def test_a_schedule_whose_run_is_late_or_active_is_shown(writer: Browser, app: Dibs) -> None:
    """Without a worker, its job is due and not scheduled any more."""
    task = app.get_task("clean")
    for name in ("late", "running"):
        await task.schedule(name, every=HOUR_MS / 1000)
        await app.queue("clean").amend(f"schedule:{name}", delay=0)
    async with app.queue("clean").receive(max_jobs=1) as claims:
        await anext(aiter(claims))
        page = await writer.text("/periodic")

    assert "schedule:late" in page
    assert "schedule:running" in page


# -- The page of workers: idle and busy ones by their records, and holders without a record ----------


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
