"""Many queues: a page counts the queues that it shows, and the others in bounded steps."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from dibs import Dibs, Queue
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, SettingsPatch
from dibs.storage.postgres.network import server
from dibs.storage.read_limits import read_limit
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.reading import shared
from dibs.web.reading.shared import READ_TIMEOUT, Census
from dibs.web.reading.source import CALL_BYTES, FIRST_CALL, MAX_LIST_CHARACTERS, SCAN_BYTES, Source
from tests.web.conftest import Browser, browse, may
from tests.web.jobs import CountingStorage, end, fail


@pytest.fixture
async def many() -> AsyncIterator[tuple[Dibs, CountingStorage]]:
    """An app with 300 queues of one job each."""
    app = Dibs("memory:")
    storage = CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app:
            for number in range(300):
                await app.queue(f"queue-{number:03}").enqueue({})
            yield app, storage


async def waiting(browser: Browser) -> str:
    page = await browser.text("/")
    return page.partition("<h2>Waiting</h2>")[2].partition("</p>")[0].rpartition(">")[2]


@pytest.mark.usefixtures("unexamined")
async def test_the_first_page_waits_for_its_own_queues_only(many: tuple[Dibs, CountingStorage]) -> None:
    """The others are counted in the background, and a later page has them."""
    app, storage = many
    storage.calls.clear()
    # The first count is that of the queues of the page. The listing is that of the workers.
    go_on = asyncio.Event()
    storage.held["counts"] = (1, go_on)
    async with browse(dibs_web(app, allow="read")) as browser:
        first = await browser.text("/")
        calls = Counter(storage.calls)

        assert "250 not counted yet" in first
        assert '<td class="num" data-label="Waiting">1</td>' in first
        assert {"queues": 1, "counts": 2, "list": 1} == dict(calls)

        go_on.set()
        async with asyncio.timeout(30):
            while "300" != await waiting(browser):  # noqa: ASYNC110 - the page has no event
                await asyncio.sleep(0.6)


async def test_the_count_goes_on_without_a_page_until_each_queue_has_one(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, storage = many
    monkeypatch.setattr(shared, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(shared, "FIRST_CALL", 20)
    counted = Census(app.queue("q")._client.bounded_storage)
    storage.calls.clear()
    await counted.counts(["queue-000"])
    async with asyncio.timeout(30):
        # The census has no event for its end.
        while counted.uncounted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert 1 + 15 == storage.calls.count("counts")


async def test_pages_about_all_queues_wait_until_each_is_counted(
    many: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = many
    monkeypatch.setattr(shared, "STEP_SECONDS", 1e-9)
    monkeypatch.setattr(shared, "FIRST_CALL", 1)
    async with browse(dibs_web(app, allow="read")) as browser:
        page = await browser.text("/place")

    assert "<dt>waiting</dt><dd>300</dd>" in page


@pytest.mark.usefixtures("unexamined")
async def test_idle_queues_cost_no_read_of_their_logs(many: tuple[Dibs, CountingStorage]) -> None:
    app, storage = many
    storage.calls.clear()
    async with browse(dibs_web(app, allow="read")) as browser:
        await browser.text("/")
        await browser.text("/", page="2")

    assert 0 == storage.calls.count("events")
    assert storage.calls.count("counts") <= 4


async def test_a_queue_that_was_removed_is_no_longer_counted(many: tuple[Dibs, CountingStorage]) -> None:
    app, _ = many
    counted = Census(app.queue("q")._client.bounded_storage)
    await counted.counts(seconds=5)
    counted._counts["gone"] = counted._counts["queue-001"]
    counted.forget()
    await counted.counts(seconds=5)

    assert "gone" not in counted.known
    assert 0 == counted.uncounted


# -- Bounds of memory and of pages, with jobs of the largest size that the storage accepts -----------


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


# -- Every read of the dashboard has a limit at the server of its storage ----------------------------


READS: Final = ("get", "list", "counts", "queues", "events")
PARAMS: Final = {
    "queue": "name=q&state=failed&prefix=a",
    "job": "queue=q&id=a",
    "search": "text=a",
    "flow": "id=a",
    "enqueue": "queue=q",
}


class NotingStorage(CountingStorage):
    """A storage that notes the limit of each read."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.limits: set[tuple[str, float | None]] = set()

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in READS or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.limits.add((name, read_limit.get()))
            return await found(*args, **kwargs)

        return call


@pytest.mark.parametrize("page", [*Pages(Source(Dibs("memory:"))).kinds, "do/matching"])
async def test_each_page_reads_with_a_limit(page: str) -> None:
    app = Dibs("memory:", flows=True)
    storage = NotingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app:
            await fail(app.queue("q"), "a")
            async with browse(dibs_web(app, allow=may("write"))) as browser:
                storage.limits.clear()
                if page == "do/matching":
                    answer = await browser.post("matching", {"queue": "q"})
                else:
                    path = "" if page == "overview" else page
                    answer = await browser.get(f"/{path}?{PARAMS.get(page, '')}")

    assert answer.status_code in (200, 303)
    assert {READ_TIMEOUT} == {limit for _, limit in storage.limits} or page in ("history", "enqueue")
    assert read_limit.get() is None


@pytest.mark.parametrize("any_url", ["postgresql"], indirect=True)
async def test_each_statement_of_the_pages_has_a_limit(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Postgres has statements."""
    await fail(any_queue, "a")
    limits: list[tuple[str, str]] = []
    run: Callable[..., Any] = server.run_statement

    async def noting(connection: Any, query: bytes, params: Any) -> Any:
        [(limit,)] = await (await connection.execute("SHOW statement_timeout")).fetchall()
        limits.append((limit, re.sub(r"\s+", " ", query.decode())[:60]))
        return await run(connection, query, params)

    monkeypatch.setattr(server, "run_statement", noting)
    async with browse(dibs_web(any_app, allow="read")) as browser:
        for page in ("", "failures", "workers", "periodic", "flows", "place"):
            await browser.text(f"/{page}")
        await browser.text("/queue", name=any_queue.name, state="failed")
        await browser.text("/job", queue=any_queue.name, id="a")

    assert len(limits) > 10
    # The findings of the doctor compare clocks by a renewal of no lease, which is a verb that may write.
    assert [] == [query for limit, query in limits if limit != "5s" and "r.ends_at" not in query]
