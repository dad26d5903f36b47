"""The safety of the dashboard in Chromium: where its cookie goes, and which forms are submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from dibs import Dibs, Queue
from dibs.web import bulk
from tests.web.browser.conftest import WIDTHS, chromium, require_browser, serving, viewing
from tests.web.jobs import fail
from tests.web.test_gate import TOKEN
from tests.web.test_gate import serving as serving_with_a_token

pytestmark = pytest.mark.browser


async def test_the_cookie_goes_to_no_other_port_of_the_host(tmp_path: Path) -> None:
    """The reader logs in, writes, and then opens a page of another program on the same host."""
    require_browser()
    cookies: list[str] = []

    def note(request: Request) -> PlainTextResponse:
        cookies.append(request.headers.get("cookie", ""))
        return PlainTextResponse("another program")

    stranger = Starlette(routes=[Route("/{path:path}", note)])
    async with (
        serving_with_a_token(tmp_path, write=True) as base,
        serving(stranger) as other,
        chromium() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"{base}queue?name=emails&token={TOKEN}")
        await page.get_by_text("Pause…", exact=True).click()
        await page.get_by_role("button", name="Pause", exact=True).click()
        await page.get_by_text("The queue is paused").wait_for()
        kept = await page.context.cookies()
        for path in ("", "queue?name=emails", "live/overview", "static/dibs.js"):
            await page.goto(f"{other}{path}")
        # The cookie is kept: the reader goes back without the token.
        folder = kept[0].get("path", "")
        await page.goto(f"{base.removesuffix('/')}{folder}queue?name=emails")
        await page.get_by_role("button", name="Resume").wait_for()

    assert 1 == len(kept)
    assert {""} == set(cookies)


async def test_no_form_is_submitted_when_a_page_loads(any_app: Dibs, any_queue: Queue) -> None:
    """Whatever markup comes into a page, the reader's click decides about a write."""
    action = f"/do/pause?queue={any_queue.name}"
    forms = "".join(
        f'<form method="post" action="{action}" {mark}><button>x</button></form>'
        for mark in ("data-continue", 'class="act steps"', 'class="steps" data-continue')
    )
    sent: list[str] = []
    async with viewing(any_app) as viewer:

        async def inject(route: Any) -> None:
            answer = await route.fetch()
            await route.fulfill(
                response=answer, body=(await answer.text()).replace("</main>", f"{forms}</main>")
            )

        viewer.page.on("request", lambda request: sent.append(request.method))
        await viewer.page.route(f"{viewer.base}place", inject)
        await viewer.open("place")
        await viewer.is_live()
        # The first live update removes the forms, so the script has run with them.
        await viewer.page.locator("form.steps").first.wait_for(state="detached")

    assert {"GET"} == set(sent)


async def test_another_site_of_the_host_cannot_write(any_app: Dibs, any_queue: Queue) -> None:
    """A page on another port posts the form of a pause, as a top-level navigation with all cookies."""
    async with viewing(any_app) as viewer:
        action = f"{viewer.base}do/pause?queue={any_queue.name}"
        form = f'<form method="post" action="{action}"><button>Go</button></form>'
        evil = Starlette(routes=[Route("/", lambda _: HTMLResponse(form))])
        await viewer.open(f"queue?name={any_queue.name}")
        async with serving(evil) as other:
            await viewer.page.goto(other)
            await viewer.page.get_by_role("button", name="Go").click()
            await viewer.page.get_by_text("came from another site").wait_for()
        await viewer.open(f"queue?name={any_queue.name}")
        await viewer.page.get_by_text("Pause…", exact=True).wait_for()
        viewer.complaints.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_retry_goes_on_step_by_step_after_a_click(
    any_app: Dibs, any_queue: Queue, width: str, theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    monkeypatch.setattr(bulk, "STEP_JOBS", 2)
    for number in range(7):
        await fail(any_queue, f"job-{number}", "shop.Broken", f"number {number}")
    async with viewing(any_app, WIDTHS[width], theme) as viewer:
        page, steps = viewer.page, list[str]()
        page.on("request", lambda request: steps.append(request.url) if request.method == "POST" else None)
        await viewer.open(f"failures?queue={any_queue.name}")
        await page.get_by_role("button", name="Retry all shop.Broken").click()
        await viewer.sees("7 jobs")
        await page.get_by_role("button", name="Retry them").click()
        await page.get_by_text("Done.").wait_for()

        assert 0 == await viewer.overflow()
        assert (await any_queue.counts()).waiting == 7
        # The count, and at least three steps of the same address.
        assert 5 <= len(steps)
        assert 1 == len(set(steps))
        await page.screenshot(path=tmp_path / f"{width}-{theme}.png")
