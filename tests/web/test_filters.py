"""The page of a queue: filters, the oldest job, the groups of its failures, and its settings."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs, Queue, Rate
from dibs.web import dibs_web
from dibs.web.reading import queue
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
