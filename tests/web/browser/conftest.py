"""Chromium in the dashboard: a server on a free port, in the event loop of the test, and a page of a browser.

The tests need playwright, and Chromium or Chrome of the system: `apt-get install chromium`. $DIBS_CHROMIUM
names another program. Without them the tests are skipped, and fail with DIBS_TEST_BROWSER=required.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from attrs import define, field

from dibs import Dibs
from dibs.web import Dashboard, dibs_web
from tests.web.conftest import may

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Milliseconds after which an expected change has not come. The machine of the tests may be busy.
PATIENCE = 20_000
#: Widths of windows in pixels.
WIDTHS = {"phone": 390, "desk": 1440}


def find_chromium() -> str | None:
    named = os.environ.get("DIBS_CHROMIUM")
    return named or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def missing() -> str:
    """Return the reason for which the tests cannot run; "" if they can."""
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[dev]'"
    return "" if find_chromium() else "Chromium is not installed: apt-get install chromium"


def require_browser() -> None:
    """Skip the test without a browser; fail it with DIBS_TEST_BROWSER=required."""
    if reason := missing():
        if os.environ.get("DIBS_TEST_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)


@define(eq=False)
class Viewer:
    """A page of the browser, and the complaints that it has logged."""

    page: Page
    base: str
    complaints: list[str] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on(
            "console",
            lambda line: (
                self.complaints.append(f"{line.type}: {line.text}")
                if line.type in ("error", "warning")
                else None
            ),
        )

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.base}{path}")

    async def sees(self, text: str) -> None:
        """Wait until the main part of the page has a text."""
        await self.page.locator("main").get_by_text(text).first.wait_for()

    async def is_live(self) -> None:
        """Wait until the first live update has come."""
        await self.page.locator('#live[data-state="live"]').wait_for()

    async def overflow(self) -> int:
        """Return the number of pixels by which the page is wider than the window."""
        wider: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wider


@asynccontextmanager
async def serving(dashboard: Any, lifespan: Any = "off") -> AsyncIterator[str]:
    """Serve an ASGI application in this event loop; yield its address, which ends with a slash."""
    server = uvicorn.Server(
        uvicorn.Config(
            dashboard, port=0, log_level="error", lifespan=lifespan, timeout_graceful_shutdown=1, ws="none"
        )
    )
    # The server of a test handles no signals: pytest does.
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve())
    # uvicorn sets a flag when it listens, and has no event for it.
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(),
            # Tests run as root in containers, where the sandbox of Chromium cannot start.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def viewing(app: Dibs | Dashboard, width: int = 1440, theme: Any = "light") -> AsyncIterator[Viewer]:
    """Open a dashboard, or that of an app with the right to write, in a window of a width and a theme."""
    require_browser()
    dashboard = app if isinstance(app, Dashboard) else dibs_web(app, allow=may("write"))
    async with serving(dashboard) as base, chromium() as browser:
        context = await browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
        viewer = Viewer(await context.new_page(), base)
        yield viewer
        await context.close()

    assert [] == viewer.complaints
