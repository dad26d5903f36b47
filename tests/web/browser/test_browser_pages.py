"""The dashboard in Chromium: each page on each storage, flows, selections, settings, and many queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, Queue
from dibs.model.job import Error
from dibs.model.requests import RetryLater, Settlement
from dibs.web import dibs_web
from tests.background_worker import background_worker
from tests.flow.tasks import FAILING, Tasks
from tests.web import shop
from tests.web.browser.conftest import WIDTHS, Viewer, viewing
from tests.web.conftest import may
from tests.web.jobs import claim, complete, fail, storage_of
from tests.web.warehouse import write_warehouse

pytestmark = pytest.mark.browser


@pytest.fixture
async def tasks(any_url: str) -> AsyncIterator[Tasks]:
    """Tasks of flows on a new storage of each kind, with a worker."""
    tasks = Tasks(any_url)
    async with tasks.app:
        work = asyncio.create_task(tasks.app.work(handle_signals=False, name="worker-7"))
        yield tasks
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def enqueue_failing(tasks: Tasks) -> str:
    """Enqueue a flow whose second node fails, wait for its end, and return its id."""
    FAILING.add(f"{tasks.mark} 1")
    flow = tasks.app.flow(id=f"f-{tasks.mark}")
    loads = [flow.add(tasks.load.bind(tasks.mark, number)) for number in range(3)]
    flow.add(tasks.summarise.bind([load.output for load in loads]))
    ticket = await flow.enqueue()
    with pytest.raises(Exception, match="did not complete"):
        await ticket.result(wait=60)
    return flow.id


async def test_each_page_of_each_storage_opens_and_lives(tasks: Tasks, tmp_path: Path) -> None:
    """No page logs an error or scrolls sideways, and each page gets a live update."""
    write_warehouse(tmp_path / "history")
    flow = await enqueue_failing(tasks)
    queue = tasks.app.queue("emails")
    await complete(queue, "done")
    await fail(queue, "broken")
    await queue.enqueue({"to": "ada"}, id="held", attributes={"team": "red"})
    await claim(queue)
    await queue.enqueue({"to": "bob"}, id="held")
    dashboard = dibs_web(tasks.app, allow=may("write"), warehouse=tmp_path / "history")
    wide = []
    async with viewing(dashboard, WIDTHS["phone"]) as viewer:
        for path, text in {
            "": "emails",
            "queue?name=emails&state=failed": "shop.Broken",
            "queue?name=emails&state=active&attr=team": "1 of 1 entries were read",
            "job?queue=emails&id=held": "Successor",
            "failures": "shop.Broken",
            "flows?state=failed": flow,
            f"flow?id={flow}": "Why it failed",
            "periodic": "There is no schedule",
            "workers": "worker-7",
            "place": "Accepted jobs survive",
            "history": "order-666",
        }.items():
            await viewer.open(path)
            await viewer.is_live()
            await viewer.sees(text)
            if overflow := await viewer.overflow():
                wide.append((path, overflow))

    assert [] == wide


async def test_a_flow_is_followed_retried_and_cancelled(tasks: Tasks) -> None:
    """The graph changes without a reload. The boxes are reached with the keyboard."""
    id = await enqueue_failing(tasks)
    async with viewing(tasks.app) as viewer:
        page = viewer.page
        await viewer.open(f"flow?id={id}")
        await viewer.is_live()
        await page.evaluate("window.loadedOnce = true")
        boxes = page.locator(".graph.desk .box.t-bad")
        assert 1 == await boxes.count()
        FAILING.discard(f"{tasks.mark} 1")
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_text("The flow runs again").wait_for()
        await page.locator(".graph.desk .box.t-ok").nth(3).wait_for()
        assert 0 == await page.get_by_role("button", name="Retry").count()

        flow = tasks.app.flow(id=f"g-{tasks.mark}")
        flow.add(tasks.approve.bind("may it?"))
        ticket = await flow.enqueue()
        await viewer.open(f"flow?id={flow.id}")
        await page.locator(".graph.desk .box.t-run").wait_for()
        await page.locator(".graph.desk a").focus()
        await page.keyboard.press("Enter")
        await viewer.sees("part of the flow")
        await page.get_by_role("link", name=flow.id, exact=True).click()
        await page.get_by_text("Cancel…").click()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_text("A worker cancels the open jobs").wait_for()
        with pytest.raises(Exception, match="cancelled"):
            await ticket.result(wait=60)


async def test_selected_jobs_and_settings_change_the_storage(any_app: Dibs, any_queue: Queue) -> None:
    for id in ("a", "b", "c"):
        await any_queue.enqueue({}, id=id, delay=3600, attributes={"team": "red" if id != "c" else "blue"})
    async with viewing(any_app) as viewer:
        page = viewer.page
        await viewer.open(f"queue?name={any_queue.name}&state=waiting")
        await page.get_by_label("Attribute, as in team=red").fill("team=red")
        await page.get_by_role("button", name="Filter").click()
        await viewer.sees("3 of 3 entries were read.")
        await page.get_by_label("Select all jobs").check()
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await viewer.sees("2 of 2 done.")
        counts = await any_queue.counts()
        assert (1, 2) == (counts.waiting, counts.cancelled)

        await viewer.open(f"queue?name={any_queue.name}&state=cancelled")
        await page.get_by_label("Select a", exact=True).check()
        await page.get_by_role("button", name="Forget…").click()
        await page.get_by_role("button", name="Forget").click()
        await viewer.sees("1 of 1 done.")
        assert 1 == (await any_queue.counts()).cancelled

        await viewer.open(f"queue?name={any_queue.name}")
        await page.get_by_text("Change settings…").click()
        await page.get_by_label("Starts of runs", exact=True).fill("5/s burst 2")
        await page.get_by_label("Most active jobs of a key").fill("1")
        await page.get_by_role("button", name="Store").click()
        await viewer.sees("5 in 1 s, burst 2")


async def test_a_form_follows_the_storage_until_it_is_changed(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.configure(max_active=3)
    async with viewing(any_app) as viewer:
        page = viewer.page
        await viewer.open(f"queue?name={any_queue.name}")
        await viewer.is_live()
        await page.get_by_text("Change settings…").click()
        await page.get_by_label("Most active jobs of a key").fill("4")
        await any_queue.configure(max_active=9)
        await page.locator('input[name="max_active"][value="9"]').wait_for()

        assert "9" == await page.get_by_label("Most active jobs", exact=True).input_value()
        assert "4" == await page.get_by_label("Most active jobs of a key").input_value()


async def test_the_first_live_update_keeps_typed_text_and_open_details(
    any_app: Dibs, any_queue: Queue
) -> None:
    """The reader may type before the first update comes."""
    await any_queue.enqueue({}, id="a", attributes={"note": "first"})
    go_on = asyncio.Event()

    async def hold(route: Any) -> None:
        await go_on.wait()
        await route.continue_()

    async with viewing(any_app) as viewer:
        page = viewer.page
        await page.route("**/live/**", hold)
        await viewer.open(f"queue?name={any_queue.name}")
        await page.get_by_text("Change settings…").click()
        await page.get_by_label("Most active jobs of a key").fill("5")
        await any_queue.enqueue({}, id="second")
        go_on.set()
        await viewer.sees("second")

        assert await page.get_by_label("Most active jobs of a key").is_visible()
        assert "5" == await page.get_by_label("Most active jobs of a key").input_value()


async def test_a_thousand_queues_are_shown_page_by_page() -> None:
    async with Dibs("memory:") as app:
        for number in range(1000):
            await app.queue(f"queue-{number:04}").enqueue({})
        async with viewing(app, WIDTHS["phone"]) as viewer:
            await viewer.open("")
            await viewer.is_live()
            await viewer.sees("Page 1 of 20, 1,000 queues")
            await viewer.page.get_by_role("link", name="Next").click()
            await viewer.sees("queue-0050")
            await viewer.page.get_by_label("Part of the name").fill("queue-09")
            await viewer.page.get_by_role("button", name="Filter").click()
            await viewer.sees("Page 1 of 2, 100 queues")

            assert 0 == await viewer.overflow()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_flows_and_history_pass_the_accessibility_check(tmp_path: Path, theme: str) -> None:
    axe_module = pytest.importorskip("axe_playwright_python.async_playwright")
    write_warehouse(tmp_path / "history")
    tasks = Tasks("memory:")
    async with tasks.app, background_worker(tasks.app):
        flow = await enqueue_failing(tasks)
        async with tasks.app.batch(id="b-1", on_finish=tasks.note.bind(tasks.mark, "end")) as batch:
            await batch.enqueue_many(tasks.load.bind(tasks.mark, number) for number in range(3))
        await (await tasks.app.get_batch("b-1").ticket()).result(wait=60)
        dashboard = dibs_web(tasks.app, allow=may("write"), warehouse=tmp_path / "history")
        violations: list[object] = []
        for width in WIDTHS.values():
            async with viewing(dashboard, width, theme) as viewer:
                for path in (
                    "flows?state=failed",
                    f"flow?id={flow}",
                    "flow?id=b-1",
                    "history",
                    "workers",
                    "",
                ):
                    violations += await _violations(axe_module, viewer, path)

    assert [] == violations


async def _violations(axe_module: object, viewer: Viewer, path: str) -> list[object]:
    await viewer.open(path)
    await viewer.is_live()
    found = await axe_module.Axe().run(viewer.page)  # type: ignore[attr-defined]
    wide = [(path, "overflow")] if await viewer.overflow() else []
    return [
        *wide,
        *(
            (path, each["id"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found.response["violations"]
        ),
    ]


async def test_a_selection_stays_during_live_updates() -> None:
    async with shop.app.using("memory:") as app, viewing(app) as viewer:
        queue = app.queue("emails")
        for id in ("a", "b"):
            await queue.enqueue({}, id=id, delay=3600)
        await viewer.open("queue?name=emails&state=waiting")
        await viewer.is_live()
        await viewer.page.get_by_label("Select b").check()
        await queue.enqueue({}, id="c", delay=3600)
        await viewer.page.get_by_label("Select c").wait_for()

        assert await viewer.page.get_by_label("Select b").is_checked()
        assert not await viewer.page.get_by_label("Select c").is_checked()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
async def test_an_outage_and_a_missing_worker_appear_on_open_pages(width: int, theme: str) -> None:
    """The overview shows both at its next live updates, and no page scrolls sideways for the banner."""
    async with Dibs("memory:") as app, viewing(app, width, theme) as viewer:
        queue = app.queue("payments.refund")
        await queue.enqueue_many([{}] * 12)
        lonely = app.queue("x" * 60)
        await lonely.enqueue({}, delay=3600)
        storage, runs = await storage_of(queue), await claim(queue, 12)
        await viewer.open("")
        await viewer.is_live()
        assert 0 == await viewer.page.locator(".alarms").count()

        error = Error(type="httpx.ConnectError", message="the payment service does not answer " * 9)
        action = RetryLater(delay=3_600_000, error=error)
        settlements = [Settlement(id=id, fence=fence, action=action) for id, fence in runs]
        await storage.settle(queue.name, settlements)
        await lonely.enqueue_many([{}] * 3000)
        await viewer.sees("12 retrying")
        await viewer.sees("no worker")
        await viewer.page.locator(".alarms li").nth(1).wait_for()

        for path in ("", "queue?name=payments.refund", f"queue?name={lonely.name}", "failures", "workers"):
            await viewer.open(path)
            assert "12 jobs wait after a run that failed" in await viewer.page.locator(".alarms").inner_text()
            assert "3,000 due jobs wait" in await viewer.page.locator(".alarms").inner_text()
            assert 0 == await viewer.overflow(), path
        await viewer.page.locator(".alarms").get_by_role("link", name="What to do").click()
        await viewer.sees("queue-not-served")
