"""The screenshots of docs/howto/dashboard.md: `python -m tests.web.browser.screenshots` takes them again.

A worker runs the jobs of a small shop in memory for some seconds, so that the pages have something to show.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from dibs import Dibs, PermanentError, current_job
from tests.web.browser.conftest import viewing

IMAGES = Path(__file__).parents[3] / "docs" / "images"
#: Seconds for which the worker runs before the first picture.
WARM_UP = 20
WIDTH = 1200
PICTURES = {
    "dashboard-overview-light": ("", "light"),
    "dashboard-overview-dark": ("", "dark"),
    "dashboard-job-light": ("job?queue=reports.monthly&id=customer-7", "light"),
    "dashboard-job-dark": ("job?queue=reports.monthly&id=customer-7", "dark"),
}

app = Dibs("memory:")


@app.task(queue="emails.welcome")
async def welcome(to: str, language: str = "en") -> str:
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.03:
        raise PermanentError(f"mailbox '{to}' does not exist")
    return to


@app.task(queue="thumbnails", max_active=4)
async def thumbnail(path: str, width: int = 200) -> str:
    await asyncio.sleep(random.uniform(0.2, 1.0))
    return f"{path}@{width}"


@app.task(queue="reports.monthly")
async def report(customer: int, month: str) -> str:
    job = current_job()
    for page in range(20):
        await job.progress({"page": page, "of": 20})
        await asyncio.sleep(0.4)
    return f"{customer}-{month}.pdf"


@app.task(queue="cleanup", every="15m")
async def cleanup() -> None: ...


@app.task(queue="billing.close", cron="0 3 * * *", tz="Europe/Berlin")
async def close_books() -> None: ...


async def produce() -> None:
    """Enqueue jobs for ever."""
    await app.queue("search.index").enqueue_many([{"document": number} for number in range(40)])
    await app.queue("search.index").pause()
    await welcome.options(delay=3600).enqueue("grace@example.org")
    number = 0
    while True:
        for _ in range(random.randint(0, 5)):
            number += 1
            await welcome.enqueue(f"user{number}@example.org")
        await thumbnail.options(id=f"picture-{number % 40}").enqueue(f"picture-{number % 40}.png")
        if random.random() < 0.15:
            await report.options(id="customer-7").enqueue(7, "2026-11")
        await asyncio.sleep(0.4)


async def take(viewer: Any, name: str, path: str) -> None:
    await viewer.open(path)
    await viewer.is_live()
    if path:
        # A moment at which the id has all its parts.
        for part in ("Successor", "Outcome"):
            await viewer.page.get_by_role("heading", name=part).wait_for()
    else:
        # Some updates, so that the lines of the page have points.
        await asyncio.sleep(25)
    await viewer.page.screenshot(path=IMAGES / f"{name}.png")


async def main() -> None:
    async with app:
        background = [
            asyncio.create_task(produce()),
            asyncio.create_task(app.work(handle_signals=False, name="worker-1")),
        ]
        await asyncio.sleep(WARM_UP)
        for name, (path, theme) in PICTURES.items():
            async with viewing(app, WIDTH, theme) as viewer:
                await take(viewer, name, path)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


if __name__ == "__main__":
    # A worker imports the tasks of this module by its name, which `python -m` replaces.
    from tests.web.browser import screenshots

    asyncio.run(screenshots.main())
