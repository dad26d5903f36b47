"""Bounds of memory and of pages, with jobs of the largest size that the storage accepts."""

from __future__ import annotations

from typing import Any

from dibs import Dibs
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, SettingsPatch
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading.source import CALL_BYTES, FIRST_CALL, MAX_LIST_CHARACTERS, SCAN_BYTES
from tests.web.conftest import browse, may
from tests.web.jobs import CountingStorage, end

MEGABYTE = 1_000_000
#: Bytes of HTML that the longest page may have. A hidden character needs 40.
MAX_PAGE = 3 * MEGABYTE
PATHS = (
    *("", "failures", "failures?queue=q", "queue?name=q", "queue?name=q&state=failed", "workers"),
    *("queue?name=q&state=waiting&prefix=none", "search?text=none", "job?queue=q&id=failed-1"),
    *("job?queue=q&id=often", "job?queue=q&id=arguments", "job?queue=q&id=waiting-1"),
)


class WeighingStorage(CountingStorage):
    """A storage that notes the number of entries of each page that it returns."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.pages: list[int] = []

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name != "list":
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            page = await found(*args, **kwargs)
            self.pages.append(len(page.items))
            return page

        return call


async def fill(app: Dibs) -> None:
    queue = app.queue("q")
    await app.storage.configure("q", SettingsPatch(log_level="all", log_results=4096))
    error = Error(type="shop.Broken", message="<" * 12_000, traceback="t" * 3_000)
    for number in range(100):
        await end(queue, f"failed-{number}", Fail(error=error), "<" * MEGABYTE)
    result = Complete(result=('"' + "\u202e" * 1_300 + '"').encode())
    for _ in range(210):
        await end(queue, "often", result, 1)
    arguments = {f"name-{number}": "\u202e" * 6_000 for number in range(50)}
    await queue.enqueue({"args": [], "kwargs": arguments}, id="arguments")
    await queue.enqueue_many([queue.bind("<" * MEGABYTE, id=f"waiting-{number}") for number in range(100)])


async def test_large_jobs_make_neither_large_reads_nor_large_pages() -> None:
    app = Dibs("memory:")
    storage = WeighingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow=may("write"))) as browser:
            await fill(app)
            for path in PATHS:
                for address in (f"/{path}", f"/api/{path}" if path else "/api/overview"):
                    storage.pages.clear()
                    answer = await browser.client.get(address)

                    assert 200 == answer.status_code, address
                    assert len(answer.content) < MAX_PAGE, address
                    # A scan ends with the call that passes the limit. The page of a queue has two lists more.
                    assert sum(storage.pages) * MEGABYTE < SCAN_BYTES + 3 * FIRST_CALL * MEGABYTE, address
                    assert [] == [each for each in storage.pages if each > FIRST_CALL], address
            story = (await browser.client.get("/api/job?queue=q&id=often")).json()["story"]["entries"]
            job = (await browser.client.get("/api/job?queue=q&id=arguments")).json()["current"]["arguments"]

    assert 200 == len(story)
    assert 50 == len(job)
    assert sum(len(each["value"]["text"]) for each in job) <= MAX_LIST_CHARACTERS
    assert CALL_BYTES < SCAN_BYTES
