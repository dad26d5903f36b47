"""The site in a browser: its search leads strangers to a guide, and its copy button takes a command alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.source import PROJECT
from tests.web.browser.conftest import PATIENCE, chromium, require_browser

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.browser

#: Words that users of other queues look for, and the page that answers them.
GUIDES = {
    "celery": "howto/coming_from_celery/",
    "concurrency": "howto/concurrency/",
    "cron": "howto/periodic_tasks/",
    "dashboard": "howto/dashboard/",
    "dead letter": "howto/recipes/",
    "debounce": "howto/recipes/",
    "deduplication": "howto/recipes/",
    "delay": "howto/snooze/",
    "docker": "howto/deploy/",
    "encrypt": "howto/encrypt/",
    "exactly once": "explanation/faq/",
    "failover": "howto/poolers_and_failover/",
    "idempotent": "howto/recipes/",
    "install": "howto/install/",
    "logging": "howto/observability/",
    "ordering": "howto/concurrency/",
    "priority": "howto/concurrency/",
    "progress": "howto/progress/",
    "rate limit": "howto/limits/",
    "retry": "howto/retries/",
    "schedule": "howto/schedules/",
    "stability": "explanation/upgrades/",
    "timeout": "howto/retries/",
    "timezone": "howto/periodic_tasks/",
    "transaction": "howto/transactions/",
    "unique": "howto/recipes/",
    "workflow": "tutorial/flows/",
}


@contextmanager
def serving(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


def build_site(folder: Path) -> Path:
    """Build the site from a copy, beside which another build of the project may go on."""
    shutil.copy(PROJECT / "mkdocs.yml", folder)
    shutil.copytree(PROJECT / "docs", folder / "docs")
    (folder / "src").symlink_to(PROJECT / "src")
    subprocess.run([Path(sys.executable).parent / "zensical", "build"], cwd=folder, check=True)
    return folder / "site"


@asynccontextmanager
async def opened_site(folder: Path) -> AsyncIterator[Page]:
    require_browser()
    with serving(build_site(folder)) as base:
        async with chromium() as browser:
            page = await browser.new_page(base_url=base, permissions=["clipboard-read", "clipboard-write"])
            page.set_default_timeout(PATIENCE)
            yield page


async def test_the_first_result_is_the_guide_and_a_copy_is_the_command(tmp_path: Path) -> None:
    found = {}
    async with opened_site(tmp_path) as page:
        await page.goto("tutorial/flows/")
        await page.locator("pre:has(.gp) button[data-md-type=copy]").first.click()
        await page.locator(".md-dialog--active").wait_for()
        copied = await page.evaluate("navigator.clipboard.readText()")

        await page.goto("")
        await page.keyboard.press("/")
        box = page.get_by_role("combobox", name="Search")
        results = page.locator("[role=listbox] a")
        for word in GUIDES:
            # The results of the last word go before those of this one come.
            await box.fill("zzzz")
            await results.first.wait_for(state="detached")
            await box.fill(word)
            link = await results.first.get_attribute("href")
            found[word] = urlsplit(link or "").path.removeprefix("/")

    assert copied == "dibs flow show order-1 --url file:./orders"
    assert found == GUIDES
