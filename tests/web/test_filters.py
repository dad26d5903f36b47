"""The page of a queue: filters, the oldest job, the groups of its failures, and its settings."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs, Queue, Rate
from dibs.model.results import ListPage, State
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.pages import FILTERED_PERIOD, Pages
from dibs.web.reading import queue
from dibs.web.reading.source import Source
from tests.web.conftest import Browser, browse, may
from tests.web.jobs import CountingStorage, complete, fail, storage_of


@pytest.fixture
async def reader(any_app: Dibs) -> AsyncIterator[Browser]:
    async with browse(dibs_web(any_app, allow="read")) as browser:
        yield browser


def ids_of(page: str) -> list[str]:
    return sorted(re.findall(r'<tr data-key="j-([^"]+)"', page))


async def test_jobs_are_found_by_the_beginning_of_the_id(reader: Browser, any_queue: Queue) -> None:
    jobs = [any_queue.bind({}, id=f"{name}-{n}") for n in range(40) for name in ("red", "blue")]
    await any_queue.enqueue_many(jobs)

    page = await reader.text("/queue", name=any_queue.name, state="waiting", prefix="red-1")

    assert sorted(["red-1", *(f"red-1{n}" for n in range(10))]) == ids_of(page)
    assert "80 of 80 entries were read." in page


@pytest.mark.parametrize(
    ("attr", "found"),
    [("team=red", ["a", "b"]), ("team", ["a", "b", "c"]), ("size=5", ["a"]), ("team=re", []), ("none", [])],
)
async def test_jobs_are_found_by_an_attribute(
    reader: Browser, any_queue: Queue, attr: str, found: list[str]
) -> None:
    jobs: dict[str, dict[str, Any]] = {
        "a": {"team": "red", "size": 5},
        "b": {"team": "red"},
        "c": {"team": "blue"},
    }
    for id, attributes in jobs.items():
        await any_queue.enqueue({}, id=id, attributes=attributes)
    await any_queue.enqueue({}, id="d")

    page = await reader.text("/queue", name=any_queue.name, state="waiting", attr=attr)

    assert found == ids_of(page)


async def test_attributes_of_ended_jobs_are_searched(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a", attributes={"team": "red"}, delay=60)
    await any_queue.cancel("a")

    page = await reader.text("/queue", name=any_queue.name, state="cancelled", attr="team=red")

    assert ["a"] == ids_of(page)


@pytest.mark.parametrize(
    ("state", "text", "found"),
    [
        ("waiting", "LAMP", ["a"]),
        ("waiting", "width", ["b"]),
        ("failed", "no route", ["c"]),
        ("failed", "ValueError: no", ["c"]),
        ("failed", '"of": "c"', ["c"]),
        ("waiting", "elephant", []),
    ],
)
async def test_jobs_are_found_by_a_part_of_their_arguments_or_error(
    reader: Browser, any_queue: Queue, state: str, text: str, found: list[str]
) -> None:
    await fail(any_queue, "c", "ValueError", "no route")
    await any_queue.enqueue({"product": "lamp"}, id="a")
    await any_queue.enqueue({"width": 5}, id="b")

    page = await reader.text("/queue", name=any_queue.name, state=state, part=text)

    assert found == ids_of(page)


async def test_all_queues_are_paused_and_resumed(any_app: Dibs) -> None:
    for name in ("a", "b"):
        await any_app.queue(name).enqueue({})
    await any_app.queue("a").pause()

    async with browse(dibs_web(any_app, allow=may("write"))) as writer:
        for action, paused in (("pause_all", True), ("resume_all", False)):
            answer = await writer.post(action, {})
            storage = await storage_of(any_app.queue("a"))
            stored = {info.name: info.settings.paused for info in await storage.queues()}

            assert {"a": paused, "b": paused} == {name: stored[name] for name in "ab"}
            assert f"did={action}" in answer.headers["location"]


async def test_a_list_shows_the_arguments(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({"product": "lamp", "about": "x" * 500}, id="a")
    await any_queue.enqueue({"product": "y" * 100_000}, id="b")

    page = html.unescape(await reader.text("/queue", name=any_queue.name, state="waiting"))

    assert '"product": "lamp"' in page
    assert "x" * 130 not in page
    assert "100,014 bytes" in page


async def test_a_filter_reads_on_with_the_next_page(
    reader: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_SCANNED", 20)
    monkeypatch.setattr(queue, "SCAN_PAGE_SIZE", 10)
    await any_queue.enqueue_many([any_queue.bind({}, id=f"job-{n:02}") for n in range(50)])

    address, found, pages = f"/queue?name={any_queue.name}&state=waiting&prefix=job-0", [], 0
    while address:
        page = await reader.text(address)
        found += ids_of(page)
        pages += 1
        follow = re.search(r'href="([^"]+)">(?:Next page|Read on)<', page)
        address = html.unescape(follow[1]) if follow else ""

    assert [f"job-{n:02}" for n in range(10)] == sorted(found)
    assert 3 == pages


async def test_hidden_arguments_cannot_be_guessed_by_a_filter(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue({"card": "4242"}, id="a")

    def redact(_queue: str, part: str, value: Any) -> Any:
        return {"card": "…"} if part == "data" else value

    async with browse(dibs_web(any_app, redact=redact, allow="read")) as reader:
        guessed = await reader.text("/queue", name=any_queue.name, state="waiting", part="4242")
        shown = await reader.text("/queue", name=any_queue.name, state="waiting", part="card")

    assert [] == ids_of(guessed)
    assert ["a"] == ids_of(shown)


async def test_a_hidden_attribute_cannot_be_guessed_by_a_filter(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a", attributes={"card": "4242"})

    def redact(_queue: str, part: str, value: Any) -> Any:
        return {"card": "…"} if part == "attributes" else value

    async with browse(dibs_web(any_app, redact=redact, allow="read")) as reader:
        guessed = await reader.text("/queue", name=any_queue.name, state="waiting", attr="card=4242")
        shown = await reader.text("/queue", name=any_queue.name, state="waiting", attr="card")

    assert [] == ids_of(guessed)
    assert ["a"] == ids_of(shown)


@pytest.mark.usefixtures("unexamined")
async def test_a_filter_costs_bounded_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.storage.registry import open_storage

    monkeypatch.setattr(queue, "MAX_SECONDS", 60.0)
    app, storage = Dibs("memory:"), CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow="read")) as reader:
            await app.queue("q").enqueue_many([{}] * 5000)
            storage.calls.clear()
            page = await reader.text("/queue", name="q", state="waiting", prefix="no-such-id")

    assert "2,000 of 5,000 entries were read; the next page continues" in page
    # 21 of the scan, as the first call reads 25 jobs, one for the oldest job, and one for the workers.
    assert 23 == storage.calls.count("list")


async def test_the_oldest_due_job_is_exact_in_a_short_queue_and_a_bound_in_a_long_one(
    reader: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_READ", 3)
    await any_queue.enqueue({}, delay=600)
    scheduled = await reader.text("/queue", name=any_queue.name)
    await any_queue.enqueue({})
    short = await reader.text("/queue", name=any_queue.name, state="waiting")
    await any_queue.enqueue_many([{}] * 3)
    long = await reader.text("/queue", name=any_queue.name, state="scheduled")

    assert "oldest due" not in scheduled
    assert "oldest due <time" in short
    assert re.search("oldest due <time[^>]*>[^<]*</time> or earlier", long)


async def test_a_scheduled_job_is_not_the_oldest(
    reader: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a long queue may be read in which no job is due."""
    monkeypatch.setattr(queue, "MAX_READ", 1)
    await any_queue.enqueue_many([any_queue.bind({}, delay=600) for _ in range(20)])
    await any_queue.enqueue({})

    page = await reader.text("/queue", name=any_queue.name)

    assert not re.search(r"oldest due <time[^>]*>in ", page)


async def test_the_failures_of_a_queue_are_grouped_on_its_page(reader: Browser, any_queue: Queue) -> None:
    for number in range(3):
        await fail(any_queue, f"user-{number}", "smtp.Refused", f"code {number}")
    await fail(any_queue, "other", "smtp.Late", "too late")
    await complete(any_queue, "fine")

    failed = await reader.text("/queue", name=any_queue.name, state="failed")
    completed = await reader.text("/queue", name=any_queue.name, state="completed")
    groups = failed.partition("groups-short")[2].partition("</ul>")[0]

    assert 2 == groups.count("<li ")
    assert groups.index("smtp.Refused") < groups.index("smtp.Late")
    assert "code 2" in groups
    assert "groups-short" not in completed


async def test_limits_are_stored_and_shown_as_the_form_writes_them(any_app: Dibs, any_queue: Queue) -> None:
    fields = {"per_key": "2", "rate": "5/s burst 10", "key_rate": "10/m", "max_waiting": "9"}
    async with browse(dibs_web(any_app, allow=may("write"))) as writer:
        await writer.post("configure", {"queue": any_queue.name}, {**fields, "when_full": "drop_new"})
        page = await writer.text("/queue", name=any_queue.name)
        refused = await writer.post("configure", {"queue": any_queue.name}, {"rate": "fast"})

    for name, text in fields.items():
        assert f'name="{name}" value="{text}"' in page
    assert "9, then drop new jobs" in page
    assert 400 == refused.status_code
    assert "rate is &#39;fast&#39;; write it as 5/s" in refused.text


async def test_the_page_of_a_queue_shows_its_turns(app: Dibs) -> None:
    queue = app.queue("fair")
    await queue.configure(fair=True, shares={"acme": 3, "<b>": 0})
    async with browse(dibs_web(app, allow=may("read"))) as reader:
        page = await reader.text("/queue", name=queue.name)

    assert "keys take turns" in page
    assert "acme 3, &lt;b&gt; paused" in page


async def test_a_setting_that_somebody_else_has_changed_meanwhile_stays(
    any_app: Dibs, any_queue: Queue
) -> None:
    await any_queue.configure(max_active=3)
    form = {"was-max_active": "3", "max_active": "3", "was-per_key": "", "per_key": "4"}
    await any_queue.configure(max_active=9, rate=Rate(1, per=1))
    async with browse(dibs_web(any_app, allow=may("write"))) as writer:
        await writer.post("configure", {"queue": any_queue.name}, form)
        page = await writer.text("/queue", name=any_queue.name)

    assert 'name="max_active" value="9"' in page
    assert 'name="per_key" value="4"' in page
    assert 'name="rate" value="1/s"' in page


# -- A queue that is too long for a list of all its ids: the storage returns short pages, and equal ones


#: Redis lists up to 1,000 ids in order.
LONG = 1_100
NEXT = re.compile(r'href="([^"]+)">(?:Next page|Read on)<')


@pytest.fixture
async def long_queue(any_queue: Queue) -> Queue:
    await any_queue.enqueue_many([any_queue.bind({}, id=f"job-{number:04}") for number in range(LONG)])
    return any_queue


async def read_pages(app: Dibs, address: str) -> list[list[str]]:
    """Return the ids of each page, from the first one on."""
    pages: list[list[str]] = []
    async with browse(dibs_web(app, allow="read")) as reader:
        while address:
            text = await reader.text(address)
            pages.append(re.findall(r'<tr data-key="j-([^"]+)"', text))
            found = NEXT.search(text)
            address = html.unescape(found[1]) if found else ""
    return pages


async def test_the_pages_have_each_job_once(
    any_app: Dibs, long_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.web.reading.queue.PAGE_SIZE", 200)
    pages = await read_pages(any_app, f"/queue?name={long_queue.name}&state=waiting")

    assert [200] * 5 + [100] == [len(page) for page in pages]
    assert LONG == len({id for page in pages for id in page})


async def test_two_readings_of_a_long_queue_are_equal(long_queue: Queue) -> None:
    """The dashboard sends a page to its viewers only if it differs from the page before."""
    storage = await storage_of(long_queue)
    # Redis moves a table that has just grown to a larger one in small steps, one with each read.
    pages = [await storage.list(long_queue.name, "waiting", limit=25) for _ in range(200)]

    assert pages[-1] == pages[-2]


class ShortPages(CountingStorage):
    """A storage whose pages have up to 7 jobs, and every second one has none."""

    async def list(
        self, queue: str, state: State, *, after: str | None = None, limit: int = 100, **rest: Any
    ) -> ListPage:
        self.calls.append("list")
        if self.calls.count("list") % 2:
            return ListPage(items=(), after=after or "first")
        after = None if after == "first" else after
        page: ListPage = await self.storage.list(queue, state, after=after, limit=min(limit, 7), **rest)
        return page


async def test_short_pages_of_a_storage_fill_a_page() -> None:
    """A storage may end a page before it is full, also with no job on it."""
    app = Dibs("memory:")
    with app.override_storage(ShortPages(open_storage("memory:"))):
        async with app:
            await app.queue("q").enqueue_many([app.queue("q").bind({}, id=f"{n:02}") for n in range(30)])
            pages = await read_pages(app, "/queue?name=q&state=waiting")

    assert [25, 5] == [len(page) for page in pages]


def test_a_filtered_list_is_read_less_often() -> None:
    pages = Pages(Source(Dibs("memory:")))
    plain = pages.key("queue", {"name": "q", "state": "waiting"})

    assert pages.period(plain) == pages.kinds["queue"].period
    for param in ("prefix", "attr"):
        assert FILTERED_PERIOD == pages.period(pages.key("queue", {"name": "q", param: "x"}))
