"""The report in Chromium: widths, themes, drill-down and the frame of a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.spark.report import ReportPage, report
from tests.spark.report_rows import HOUR, NOON, Run, write_history
from tests.web.browser.conftest import WIDTHS, chromium, require_browser

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.browser

LONG = "a-name-without-a-space-that-is-much-longer-than-a-phone-is-wide-" * 2
#: Least height of a chart in pixels, at any width.
LEAST_HEIGHT = 150


@pytest.fixture
def page(tmp_path: Path) -> ReportPage:
    """A report with two queues, a long name and a traceback of long lines."""
    bad = Run(
        queue="images", id=LONG, end="failed", error=f"shop.{LONG}", traceback=f"File {LONG * 3}\n{LONG}",
        holder=LONG,
    )  # fmt: skip
    runs = [Run(id=f"order-{n}", due=NOON + n * HOUR // 4, queue=("mail", LONG)[n % 2]) for n in range(30)]
    return report(write_history(tmp_path, [bad, *runs]))


async def opened(browser: Browser, html: str, **options: Any) -> Page:
    context = await browser.new_context(**options)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text))
    await page.set_content(html)
    await page.locator("body[data-ready=yes]").wait_for()
    assert [] == complaints
    return page


@pytest.mark.parametrize("width", WIDTHS.values(), ids=list(WIDTHS))
async def test_the_page_fits_its_window_with_all_folds_open(page: ReportPage, width: int) -> None:
    require_browser()
    async with chromium() as browser:
        view = await opened(browser, page.html, viewport={"width": width, "height": 844})
        await view.evaluate(
            "document.querySelectorAll('section').forEach(s => { s.hidden = false });"
            "document.querySelectorAll('details').forEach(d => { d.open = true });"
            "document.querySelectorAll('.only').forEach(d => { d.style.display = 'block' })"
        )
        heights = await view.evaluate(
            "[...document.querySelectorAll('.chart svg')].map(svg => svg.getBoundingClientRect().height)"
        )

        assert width == await view.evaluate("document.documentElement.scrollWidth")
        # Charts of the last hour and of all; one queue has no run in the last hour.
        assert 25 == len(heights)
        assert min(heights) >= LEAST_HEIGHT


async def test_the_page_has_the_theme_of_the_system(page: ReportPage) -> None:
    require_browser()
    background = "getComputedStyle(document.body).backgroundColor"
    async with chromium() as browser:
        light = await opened(browser, page.html, color_scheme="light")
        dark = await opened(browser, page.html, color_scheme="dark")

        assert "rgb(247, 247, 245)" == await light.evaluate(background)
        assert "rgb(20, 23, 26)" == await dark.evaluate(background)


async def test_a_reader_gets_from_a_queue_to_a_traceback(page: ReportPage) -> None:
    require_browser()
    async with chromium() as browser:
        await walk_to_the_traceback(await opened(browser, page.html))


async def test_the_frame_of_a_notebook_has_the_whole_page(page: ReportPage) -> None:
    """A link in the frame must not load the notebook into the frame."""
    require_browser()
    async with chromium() as browser:
        notebook = await browser.new_page()
        await notebook.set_content(f"<h1>notebook</h1>{page._repr_html_()}")
        frame = notebook.frame_locator("iframe")
        await frame.locator("body[data-ready=yes]").wait_for()
        await walk_to_the_traceback(frame)

        assert 0 == await frame.get_by_text("notebook").count()


async def walk_to_the_traceback(view: Any) -> None:
    await view.locator(".overview").get_by_text("last hour").click()
    await view.locator(".overview").get_by_role("link", name="images").click()
    shown = view.locator("section:not([hidden])")
    assert 1 == await shown.count()
    assert "images" == await shown.get_attribute("data-queue")
    await shown.get_by_text("No job was due, claimed or ended in this period.").wait_for(state="visible")
    await shown.get_by_text("last week").click()
    await shown.get_by_role("link", name=LONG).first.click()
    await shown.locator("summary").filter(has_text=re.compile("^traceback$")).click()
    await shown.locator("pre").wait_for(state="visible")
