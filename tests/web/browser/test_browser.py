"""The dashboard in Chromium: live updates, buttons, themes, widths, keyboard and hostile text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from dibs import Dibs, Queue
from dibs.storage.registry import open_storage
from dibs.web import bulk, live
from tests.web import shop
from tests.web.browser.conftest import WIDTHS, Viewer, viewing
from tests.web.jobs import CountingStorage, claim, complete, fail

if TYPE_CHECKING:
    from playwright.async_api import Route

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\u202eevil\u202c",
    "line\nbreak\r\n",
    "../a/b?c=d&e=f#g%2F",
    "é" * 256,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", 0.2)


def job_path(queue: Queue, id: str) -> str:
    return f"job?queue={quote(queue.name, safe='')}&id={quote(id, safe='')}"


async def test_each_button_changes_the_storage(any_app: Dibs, any_queue: Queue) -> None:
    """The buttons are pressed one after the other, as the start of a browser takes seconds."""
    await any_queue.enqueue({"n": 1}, id="job", delay=3600)
    await fail(any_queue, "broken")
    async with viewing(any_app) as viewer:
        page = viewer.page
        await viewer.open(f"queue?name={any_queue.name}")
        await page.get_by_text("Pause…", exact=True).click()
        await page.get_by_role("button", name="Pause", exact=True).click()
        await page.get_by_text("The queue is paused").wait_for()
        await any_queue.enqueue({}, id="due")
        assert [] == await claim(any_queue)
        await page.get_by_role("button", name="Resume").click()
        await page.get_by_text("Workers claim jobs of the queue again").wait_for()
        await any_queue.forget("due")
        await viewer.open(f"?filter={any_queue.name}")
        await page.get_by_label(f"Pause: {any_queue.name}…").click()
        await page.get_by_role("button", name=f"Pause: {any_queue.name}", exact=True).click()
        await page.get_by_text("The queue is paused").wait_for()
        await page.get_by_role("button", name=f"Resume: {any_queue.name}").click()
        await page.get_by_text("Workers claim jobs of the queue again").wait_for()

        await viewer.open(job_path(any_queue, "job"))
        await page.get_by_text("Change this job…").click()
        await page.get_by_label("Priority").fill("9")
        await page.get_by_label("Data").fill('{"n": 2}')
        await page.get_by_role("button", name="Store").click()
        await page.get_by_text("The job is changed.").wait_for()
        status = await any_queue.get("job")
        assert status is not None
        assert (9, {"n": 2}) == (status.priority, status.data)

        await page.get_by_role("button", name="Run now").click()
        await page.get_by_text("The job is due now.").wait_for()
        assert ["job"] == [id for id, _ in await claim(any_queue)]
        await viewer.sees("Cancel the run…")
        await page.get_by_text("Cancel the run…").click()
        await page.get_by_role("button", name="Cancel the run").click()
        await page.get_by_text("The worker is asked to stop the run.").wait_for()
        status = await any_queue.get("job")
        assert status is not None
        assert status.cancel_requested
        await page.get_by_text("Forget…").click()
        await page.get_by_role("button", name="Forget").click()
        await page.get_by_text("The id is removed").wait_for()
        assert await any_queue.get("job") is None

        await viewer.open(job_path(any_queue, "broken"))
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_text("The failed job is enqueued again.").wait_for()
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await page.get_by_text("The job is cancelled.").wait_for()
        assert 0 == (await any_queue.counts()).waiting


async def test_a_page_follows_the_storage_without_a_reload(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")
    async with viewing(any_app) as viewer:
        await viewer.open(job_path(any_queue, "a"))
        await viewer.is_live()
        await viewer.page.evaluate("window.loadedOnce = true")
        [(_, fence)] = await claim(any_queue)
        await viewer.sees("host:1")
        storage = any_app.storage
        await storage.report(any_queue.name, "a", fence, b'"half way"')
        await viewer.sees("half way")
        await any_queue.enqueue({}, id="a")
        await viewer.sees("Successor")

        assert await viewer.page.evaluate("window.loadedOnce")


async def test_an_update_keeps_typed_text_and_open_details(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a", attributes={"note": "first"})
    async with viewing(any_app) as viewer:
        await viewer.open(job_path(any_queue, "a"))
        await viewer.is_live()
        await viewer.page.get_by_text("Change this job…").click()
        await viewer.page.get_by_label("Run after").fill("5m")
        await any_queue.amend("a", attributes={"note": "second"})
        await viewer.sees("second")

        assert "5m" == await viewer.page.get_by_label("Run after").input_value()
        assert "delay" == await viewer.page.evaluate("document.activeElement.name")


async def test_a_storage_that_goes_away_and_returns_is_shown() -> None:
    app = Dibs("memory:")
    storage = CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, viewing(app) as viewer:
            await app.queue("q").enqueue({}, id="a")
            await viewer.open("queue?name=q")
            await viewer.is_live()
            storage.is_away = True
            await viewer.page.locator("#down").wait_for()
            shown = await viewer.page.locator("#down").inner_text()
            storage.is_away = False
            await viewer.page.locator("#down").wait_for(state="hidden")
            await viewer.sees("a")

    assert "the storage is away <b>now</b>" in shown


async def test_failures_are_retried_by_selection_and_all_together(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    monkeypatch.setattr(bulk, "STEP_JOBS", 2)
    for number in range(7):
        await fail(any_queue, f"job-{number}", "shop.Broken", f"number {number}")
    async with viewing(any_app) as viewer:
        page = viewer.page
        await viewer.open(f"failures?queue={any_queue.name}")
        await page.get_by_role("link", name="shop.Broken").click()
        await page.get_by_label("Select job-3").check()
        await page.get_by_label("Select job-5").check()
        await page.get_by_role("button", name="Retry the selected jobs").click()
        await viewer.sees("2")
        assert 2 == (await any_queue.counts()).waiting

        await viewer.open(f"failures?queue={any_queue.name}")
        await page.get_by_role("button", name="Retry all shop.Broken").click()
        await viewer.sees("5 jobs")
        await page.get_by_role("button", name="Retry them").click()
        await page.get_by_text("Done.").wait_for()
        counts = await any_queue.counts()

        assert (7, 0) == (counts.waiting, counts.failed)


@pytest.mark.parametrize(("width", "theme"), [("phone", "dark"), ("desk", "light")])
async def test_all_jobs_that_match_a_filter_are_cancelled(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch, width: str, theme: str
) -> None:
    monkeypatch.setattr(bulk, "PAGE_SIZE", 10)
    monkeypatch.setattr(bulk, "STEP_JOBS", 10)
    for number in range(36):
        await any_queue.enqueue({"customer": "acme" if number % 2 else "other"}, id=f"job-{number}")
    async with viewing(any_app, WIDTHS[width], theme) as viewer:
        page = viewer.page
        await viewer.open(f"queue?name={any_queue.name}&state=waiting")
        await page.get_by_label("Arguments or error contain").fill("acme")
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_text("All that match:").wait_for()
        sideways = [await viewer.overflow()]
        await page.get_by_role("button", name="Cancel…").click()
        await viewer.sees("18 jobs")
        sideways.append(await viewer.overflow())
        await page.get_by_role("button", name="Cancel them").click()
        await page.get_by_text("Done.").wait_for()
        sideways.append(await viewer.overflow())
        shown = await page.locator("main").inner_text()
        counts = await any_queue.counts()

    assert "18 cancelled. Done." in shown
    assert (18, 18) == (counts.waiting, counts.cancelled)
    assert [0, 0, 0] == sideways


async def test_a_job_is_enqueued_from_the_form_of_its_task() -> None:
    async with shop.app.using("memory:") as app, viewing(app) as viewer:
        page = viewer.page
        await viewer.open("enqueue?queue=thumbs")
        await page.get_by_label("path").fill("a.png")
        await page.get_by_label("width").fill("wide")
        await page.get_by_label("Id", exact=True).fill("thumb-1")
        await page.get_by_role("button", name="Enqueue").click()
        await page.get_by_text("width is not JSON").wait_for()
        # Chromium logs an error for each answer from status 400 on.
        assert 1 == len(viewer.complaints)
        viewer.complaints.clear()
        assert "a.png" == (await page.get_by_label("path").input_value())
        await page.get_by_label("width").fill("70")
        await page.get_by_role("button", name="Enqueue").click()
        await page.get_by_text("The job is enqueued.").wait_for()
        status = await shop.thumbnail.queue.get("thumb-1")

        assert status is not None
        assert {"path": "a.png", "width": 70} == status.kwargs


async def fill_shop(app: Dibs) -> None:
    """Give each page something to show."""
    queue = app.queue("emails.welcome")
    await complete(queue, "done")
    await fail(queue, "broken", "smtp.Refused", "no such user 'ada'")
    await queue.enqueue({"to": "ada", "text": "x" * 3000}, id="held", attributes={"a": 1})
    await claim(queue)
    await queue.enqueue({"to": "bob"}, id="held")
    for id in HOSTILE:
        await queue.enqueue({"id": id}, id=id)
    await app.queue("n" * 500).enqueue({})
    await app.queue("<img src=x onerror=alert(3)>").pause()
    await shop.clean.options(id="schedule", delay=60).enqueue()


SHOWN = (
    "",
    "queue?name=emails.welcome",
    "queue?name=emails.welcome&state=failed",
    "queue?name=emails.welcome&state=active",
    "job?queue=emails.welcome&id=held",
    "job?queue=emails.welcome&id=broken",
    "failures",
    "periodic",
    "workers",
    "place",
    "search?text=e",
    "enqueue?queue=thumbs",
    *(f"job?queue=emails.welcome&id={quote(id, safe='')}" for id in HOSTILE[::5]),
)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_each_page_fits_and_passes_the_accessibility_check(width: str, theme: str) -> None:
    """No page scrolls sideways, logs an error, opens a dialog, or has a violation that axe-core finds."""
    axe_module = pytest.importorskip("axe_playwright_python.async_playwright")
    wide, violations = [], []
    async with (
        shop.app.using("memory:") as app,
        viewing(app, WIDTHS[width], theme) as viewer,
    ):
        await fill_shop(app)
        for path in SHOWN:
            await viewer.open(path)
            if overflow := await viewer.overflow():
                wide.append((path, overflow))
            found = await axe_module.Axe().run(viewer.page)
            violations += [
                (path, each["id"], [node["html"][:200] for node in each["nodes"][:3]])
                for each in found.response["violations"]
            ]

    assert [] == wide
    assert [] == violations


#: Counts the layout shifts of a page that no input of the reader has caused.
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts.push(entry.value);
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_moves_while_a_page_loads_and_updates(width: str) -> None:
    """The sum of the shifts of each page stays below 0.01, a tenth of what web.dev calls good.

    The script arrives late, as over a slow network, so each page is painted without it first.
    """

    async def answer_late(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    async with Dibs("memory:") as app:
        queue = app.queue("emails")
        await queue.enqueue_many([queue.bind({"n": number}, id=f"job-{number}") for number in range(30)])
        moved: dict[str, float] = {}
        async with viewing(app, WIDTHS[width]) as viewer:
            await viewer.page.add_init_script(SHIFTS)
            await viewer.page.route("**/dibs.js*", answer_late)
            for path in (
                "",
                "queue?name=emails",
                "job?queue=emails&id=job-1",
                "failures",
                "workers",
                "place",
            ):
                await viewer.open(path)
                await viewer.is_live()
                await queue.amend("job-1", priority=len(moved) + 1)
                moved[path] = await viewer.page.evaluate("window.shifts.reduce((sum, each) => sum + each, 0)")

            # The observer sees a shift: one of the test itself.
            await viewer.page.evaluate("document.body.style.paddingTop = '300px'")
            await viewer.page.wait_for_function("window.shifts.length > 0")

    assert {} == {path: shift for path, shift in moved.items() if shift >= 0.01}


async def test_hostile_ids_lead_to_their_pages() -> None:
    async with shop.app.using("memory:") as app, viewing(app) as viewer:
        await fill_shop(app)
        for index in range(len(HOSTILE)):
            await viewer.open("queue?name=emails.welcome&state=waiting")
            await viewer.page.locator("a.id").nth(index).click()
            await viewer.sees("Current")
            await viewer.page.get_by_text("Forget…").wait_for()


async def background(viewer: Viewer) -> str:
    color: str = await viewer.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return color


async def test_the_switch_of_the_theme_is_remembered() -> None:
    async with Dibs("memory:") as app, viewing(app, theme="dark") as viewer:
        await viewer.open("")
        dark = await background(viewer)
        await viewer.page.get_by_label("Switch between light and dark").click()
        light = await background(viewer)
        await viewer.open("failures")
        kept = await background(viewer)

    assert dark != light
    assert light == kept


async def test_the_keyboard_is_enough() -> None:
    """Skip link, search by "/", and a cancel, with keys only."""
    async with shop.app.using("memory:") as app, viewing(app) as viewer:
        queue = app.queue("emails")
        await queue.enqueue({}, id="welcome-42", delay=3600)
        page, press = viewer.page, viewer.page.keyboard.press
        await viewer.open("")
        await press("Tab")
        assert "Skip to the content" == await page.evaluate("document.activeElement.textContent")
        await press("/")
        await page.keyboard.type("welcome-42")
        await press("Enter")
        await viewer.sees("Current")
        for _ in range(30):
            await press("Tab")
            if "Cancel" == await page.evaluate("document.activeElement.textContent"):
                break
        await press("Enter")
        await page.get_by_text("The job is cancelled.").wait_for()

        assert 0 == (await queue.counts()).waiting


async def test_paused_updates_continue_with_the_button() -> None:
    async with shop.app.using("memory:") as app, viewing(app) as viewer:
        await app.queue("q").enqueue({}, id="a")
        await viewer.open("job?queue=q&id=a")
        await viewer.is_live()
        await viewer.page.locator("#live").click()
        await viewer.page.locator('#live[data-state="paused"]').wait_for()
        await app.queue("q").cancel("a")
        assert 0 == await viewer.page.locator("main").get_by_text("cancelled").count()
        await viewer.page.locator("#live").click()
        await viewer.sees("cancelled")
