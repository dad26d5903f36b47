"""The server-sent events of docs/howto/output.md in a browser that reloads and loses its connection."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dibs import Dibs
from tests.docs.pages import Page
from tests.frameworks.served import free_port
from tests.storage_urls import new_url
from tests.web.browser.conftest import PATIENCE, chromium, require_browser

pytestmark = pytest.mark.browser

WORDS = 120
#: The number of the word before which the first run waits to be killed.
STOP = 90
ANSWERS = f"""
import asyncio
from dibs import Dibs, current_job

app = Dibs(URL)


@app.task(queue="answers", max_stalls=3)
async def answer() -> None:
    job = current_job()
    for number in range({WORDS}):
        if job.attempt == 1 and number == {STOP}:
            await asyncio.sleep(60)
        await job.write(f"{{job.attempt}}:{{number}}")
        await asyncio.sleep(0.03)
"""
SITE = """
import django
from django.conf import settings
from django.core.asgi import get_asgi_application

settings.configure(ROOT_URLCONF="site_with_answers", ALLOWED_HOSTS=["*"])
api = get_asgi_application()
"""
PAGE = """<!doctype html><title>going on</title><ol></ol>
<script>
  const events = new EventSource(location.hash.slice(1))
  events.onmessage = event => {
    const line = document.createElement("li")
    line.textContent = JSON.parse(event.data)
    document.querySelector("ol").append(line)
  }
  events.addEventListener("done", () => { events.close(); document.title = "done" })
</script>"""
COUNT = "document.querySelectorAll('li').length"


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m WORDS` in a folder until the end of the block, or its own."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with all its processes, without a word to anybody."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("framework", ["answers_api", "django_site"])
@pytest.mark.parametrize("kind", ["file", "postgresql"])
async def test_a_browser_misses_nothing_and_sees_nothing_twice(
    framework: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_browser()
    url, port = new_url(kind, request), free_port()
    Page("howto/output.md").save(tmp_path)
    (tmp_path / "answers.py").write_text(ANSWERS.replace("URL", repr(url)), "utf-8")
    (tmp_path / "django_site.py").write_text(SITE, "utf-8")
    (tmp_path / "served.py").write_text(f"from {framework} import api as api", "utf-8")
    serve = ("uvicorn", "served:api", "--port", str(port), "--timeout-graceful-shutdown", "1")
    work = ("dibs", "worker", "answers:app", "--processes", "1", "--lease", "2")
    with (
        started(tmp_path, *serve) as server,
        started(tmp_path, *work) as one,
        started(tmp_path, *work) as two,
    ):
        async with Dibs(url) as app, chromium() as browser:
            ticket = await app.queue("answers").enqueue({"args": [], "kwargs": {}})
            page = await browser.new_page()
            page.set_default_timeout(2 * PATIENCE)
            address = f"http://127.0.0.1:{port}"
            await page.route(
                f"{address}/page", lambda route: route.fulfill(body=PAGE, content_type="text/html")
            )
            await page.goto(f"{address}/page#/answers/{ticket.id}/{ticket.revision}")
            await page.wait_for_function(f"{COUNT} >= 10")
            await page.reload()
            await page.wait_for_function(f"{COUNT} >= 20")
            kill(server)
            with started(tmp_path, *serve):
                await page.wait_for_function(f"{COUNT} >= {STOP}")
                status = await ticket.status()
                kill(one if str(one.pid) in status.holder else two)
                await page.wait_for_function("document.title === 'done'")
                lines = await page.locator("li").all_text_contents()

    assert [f"1:{n}" for n in range(STOP)] + [f"2:{n}" for n in range(WORDS)] == lines
