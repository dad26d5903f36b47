"""The search by the beginning of ids, arguments and errors: it says how far its scan looked."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dibs import Dibs, Queue
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, SettleAction, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading import recent, search
from dibs.web.reading.recent import Recent, RecentChart
from tests.web.conftest import Browser, browse, may
from tests.web.jobs import CountingStorage, claim, complete, fail, slot_of


def ids_of(page: str) -> list[tuple[str, str]]:
    """Return queue and id of the jobs that a search lists."""
    return re.findall(r'href="/job\?queue=([^&"]+)&amp;id=([^&"]+)"', page)


async def test_ids_are_found_by_their_beginning_in_all_queues_and_states(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        red, blue = app.queue("red"), app.queue("blue")
        await complete(red, "order-1")
        await fail(red, "order-2")
        await red.enqueue({}, id="order-3", delay=60)
        await red.enqueue({}, id="other", delay=60)
        await blue.enqueue({}, id="order-4")
        await blue.enqueue({}, id="ORDER-5", delay=60)
        await blue.cancel("ORDER-5")

        page = await reader.text("/search", text="order-")
        hidden = await reader.text("/search", text="rder-5")

    assert [("blue", "order-4"), *(("red", f"order-{n}") for n in (1, 2, 3))] == ids_of(page)
    assert "6 entries were read, and 2 of 2 queues to the end." in page
    assert [] == ids_of(hidden)
    assert "no entry that was read has it" in hidden


@pytest.mark.usefixtures("unexamined")
async def test_a_long_queue_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_SECONDS", 60.0)
    app, storage = Dibs("memory:"), CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow="read")) as reader:
            await app.queue("a-long-one").enqueue_many([{}] * 20_000)
            await app.queue("z-short").enqueue({}, id="order-1")
            storage.calls.clear()
            page = await reader.text("/search", text="order")

    assert [("z-short", "order-1")] == ids_of(page)
    assert "1 of 2 queues to the end. The filter on the page of a queue reads on." in page
    # One of the short list, and of the long one 25 entries, 49 times 100, and the rest of the 5,000.
    assert 52 == storage.calls.count("list")


async def test_a_list_that_does_not_come_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_SECONDS", 0.5)
    app, storage = Dibs("memory:"), CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow="read")) as reader:
            await app.queue("a-long-one").enqueue_many([{}] * 2000)
            await app.queue("z-short").enqueue({}, id="order-1")
            storage.calls.clear()
            storage.held["list"] = (1, asyncio.Event())
            page = await reader.text("/search", text="order")

    assert [("z-short", "order-1")] == ids_of(page)
    assert "1 entry was read, and 1 of 2 queues to the end." in page


async def test_an_exact_id_leads_to_its_job_and_the_scan_is_offered_with_several() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        for name in ("red", "blue"):
            for id in ("a", "ab"):
                await app.queue(name).enqueue({}, id=id)

        exact = await reader.get("/search", text="ab")
        await app.queue("blue").cancel("ab")
        await app.queue("blue").forget("ab")
        two = await reader.text("/search", text="a")
        scanned = await reader.text("/search", text="a", prefix="1")

    assert 200 == exact.status_code
    assert "Look for it at the beginning of ids" in two
    assert [("red", "ab")] == [each for each in set(ids_of(scanned)) if each[1] == "ab"]


async def test_arguments_and_errors_are_searched() -> None:
    def redact(_queue: str, part: str, value: Any) -> Any:
        return {**value, "card": "…"} if part == "data" and "card" in value else value

    async with Dibs("memory:") as app, browse(dibs_web(app, redact=redact, allow="read")) as reader:
        await app.queue("orders").enqueue({"city": "Lisbon"}, id="1")
        await app.queue("orders").enqueue({"card": "4242"}, id="2")
        await fail(app.queue("mails"), "3", "ValueError", "no route to Lisbon")

        found = await reader.text("/search", text="lisbon")
        hidden = await reader.text("/search", text="4242")

    assert [("mails", "3"), ("orders", "1")] == sorted(ids_of(found))
    assert "no route to Lisbon" in found
    assert [] == ids_of(hidden)


async def test_a_hostile_id_is_escaped() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("q").enqueue({}, id="x<script>alert(1)</script>\u202e")

        page = await reader.text("/search", text="x<scr")

    assert "x&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\u202e" not in page
    assert "<script>alert" not in page


# -- Actions on the jobs that a reader has selected in the list of a queue ---------------------------


#: An id that must be encoded in a form.
HARD = "a/b %2F\u202e\n"


async def press(browser: Browser, queue: Queue, act: str, *ids: str, **fields: str) -> str:
    """Press the button of an action with the boxes of some jobs checked, and return the answer."""
    jobs = [quote(id, safe="") for id in ids]
    answer = await browser.post("selected", {"queue": queue.name}, {"act": act, "job": jobs, **fields})

    assert 200 == answer.status_code, answer.text
    return answer.text


async def test_selected_jobs_are_cancelled(writer: Browser, any_queue: Queue) -> None:
    for id in ("a", "b", HARD):
        await any_queue.enqueue({}, id=id, delay=60)
    page = await press(writer, any_queue, "cancel", "a", HARD, "gone")

    counts = await any_queue.counts()
    assert (1, 2) == (counts.waiting, counts.cancelled)
    assert "<strong>2</strong> of 3 done." in page
    assert "no longer there" in page


async def test_selected_jobs_become_due(writer: Browser, any_queue: Queue) -> None:
    for id in ("a", "b", "c"):
        await any_queue.enqueue({}, id=id, delay=60)
    await press(writer, any_queue, "run_now", "a", "b")

    assert ["a", "b"] == sorted(id for id, _ in await claim(any_queue, 10))


async def test_selected_runs_are_asked_to_stop_after_a_question(
    writer: Browser,
    any_queue: Queue,
) -> None:
    await any_queue.enqueue({}, id="a")
    await claim(any_queue)
    asked = await press(writer, any_queue, "cancel_running", "a")
    before = await slot_of(any_queue, "a")
    await press(writer, any_queue, "cancel_running", "a", confirmed="1")
    after = await slot_of(any_queue, "a")

    assert "asked to stop these runs" in asked
    for slot, requested in ((before, False), (after, True)):
        assert slot.current is not None
        assert slot.current.run is not None
        assert requested == slot.current.run.cancel_requested


async def test_selected_jobs_are_forgotten_after_a_question(
    writer: Browser,
    any_queue: Queue,
) -> None:
    await complete(any_queue, "a")
    await complete(any_queue, HARD)
    asked = await press(writer, any_queue, "forget", "a", HARD)
    kept = (await any_queue.counts()).completed
    await press(writer, any_queue, "forget", "a", HARD, confirmed="1")

    assert 2 == len(re.findall('name="job"', asked))
    assert (2, 0) == (kept, (await any_queue.counts()).completed)


async def test_selected_failures_are_retried(writer: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "a")
    await fail(any_queue, "b")
    await press(writer, any_queue, "retry", "a")

    counts = await any_queue.counts()
    assert (1, 1) == (counts.waiting, counts.failed)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"act": "explode", "job": "a"}, "use one of"), ({"act": "cancel"}, "no job is selected")],
)
async def test_a_wrong_selection_is_refused(
    writer: Browser,
    any_queue: Queue,
    fields: dict[str, str],
    reason: str,
) -> None:
    answer = await writer.post("selected", {"queue": any_queue.name}, fields)

    assert 400 == answer.status_code
    assert reason in answer.text


async def test_writes_are_logged_without_values(
    writer: Browser,
    any_queue: Queue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await any_queue.enqueue({"card": "4242"}, id="a", delay=60)
    with caplog.at_level(logging.INFO, "dibs.web"):
        await writer.post("cancel", {"queue": any_queue.name, "id": "a"})
        await press(writer, any_queue, "forget", "a", confirmed="1")

    lines = [record.getMessage() for record in caplog.records if record.name == "dibs.web"]
    assert [
        f"cancel of job 'a' in the queue {any_queue.name!r}: cancelled",
        f"forget of 1 selected jobs in the queue {any_queue.name!r}: 1 done",
    ] == lines


# -- The chart of the last hours of a queue, from the log --------------------------------------------


HOUR = 3_600_000


@pytest.fixture
async def reader(any_app: Dibs) -> AsyncIterator[Browser]:
    async with browse(dibs_web(any_app, allow=may("read"))) as browser:
        yield browser


async def run(storage: Storage, id: str, action: SettleAction | None = None, now: int | None = None) -> None:
    """Enqueue a job, claim it, and end its run."""
    data = JobData(payload=b"1")
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data))], now=now)
    lease = (await storage.grant(["q"], 60_000, "host:1", now=now)).lease
    (job,) = (await storage.claim("q", lease, 1, now=now)).jobs
    assert job.run is not None
    settlement = Settlement(id=id, fence=job.run.fence, action=action or Complete())
    await storage.settle("q", [settlement], now=now)


def ended(chart: RecentChart) -> dict[int, float]:
    """Return the number of ends by the hours since then."""
    count = len(chart.parts)
    return {
        int((count - 1 - place) * chart.length // HOUR): part.total
        for place, part in enumerate(chart.parts)
        if part.total
    }


async def test_each_part_has_the_runs_that_ended_in_it() -> None:
    now = int(time.time() * 1000)
    async with open_storage("memory:", clock="manual") as storage:
        await run(storage, "a", now=now - 20 * HOUR)
        await run(storage, "b", Fail(error=Error(type="Down", message="no")), now=now - 5 * HOUR)
        for number in range(3):
            await run(storage, f"c{number}", now=now - 5 * HOUR)
        await run(storage, "d", now=now)

        day, six, one = [await Recent().read(storage, "q", hours) for hours in recent.HOURS[::-1]]

    assert {20: 1, 5: 4, 0: 1} == ended(day)
    assert {5: 4, 0: 1} == ended(six) or {4: 4, 0: 1} == ended(six)
    assert {0: 1} == ended(one)
    assert [2 + 3, 1, 0] == [day.sum(tone) for tone in ("ok", "bad", "care")]
    assert not day.is_estimate


async def test_a_part_with_more_events_than_a_page_has_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "PAGE_SIZE", 2)
    now = int(time.time() * 1000)
    begin = now - now % (HOUR // 48) - HOUR // 2
    async with open_storage("memory:", clock="manual") as storage:
        for number in range(60):
            await run(storage, f"a{number}", now=begin + number * 1000)

        chart = await Recent().read(storage, "q", 1)

    assert chart.is_estimate
    assert 60 == pytest.approx(chart.sum("ok"), rel=0.3)


async def test_a_reading_has_a_bound_and_the_next_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "PAGE_SIZE", 2)
    monkeypatch.setattr(recent, "MAX_EVENTS", 6)
    now, charts = int(time.time() * 1000), Recent()
    async with open_storage("memory:", clock="manual") as storage:
        for hours in range(23, 0, -1):
            await run(storage, f"a{hours}", now=now - hours * HOUR)

        first = await charts.read(storage, "q", 24)
        for _ in range(30):
            await charts.read(storage, "q", 24)
        last = await charts.read(storage, "q", 24)

    assert not first.is_complete
    assert last.is_complete
    assert 23 == last.sum("ok")


async def test_runs_are_in_their_part_when_numbers_are_ahead_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of a copied folder are an hour ahead, so an offset made of a time is too early."""
    monkeypatch.setattr(recent, "PAGE_SIZE", 20)
    now = int(time.time() * 1000)
    async with open_storage(f"file:{tmp_path / 'jobs'}", clock="manual") as storage:
        await run(storage, "a", now=now - 3 * HOUR)
    shutil.copytree(tmp_path / "jobs", tmp_path / "copy")
    async with open_storage(f"file:{tmp_path / 'copy'}", clock="manual") as storage:
        for number in range(50):
            await run(storage, f"b{number}", now=now - HOUR // 2)
        for number in range(5):
            await run(storage, f"c{number}", now=now)

        chart = await Recent().read(storage, "q", 1)

    assert 5 == chart.parts[-1].total
    assert 55 == chart.sum("ok")


async def test_the_page_of_a_queue_shows_the_last_hours(reader: Browser, any_queue: Queue) -> None:
    calm = await reader.text("/queue", name=any_queue.name, hours="1")
    for number in range(3):
        await complete(any_queue, f"good-{number}")
    await fail(any_queue, "bad")
    page = await reader.text("/queue", name=any_queue.name)
    section = page.partition('id="recent"')[2].partition("</section>")[0]

    assert "Last hour" in calm
    assert "No run has ended." in calm
    assert "Last 6 hours" in page
    assert 'aria-label="Runs that ended: 3 completed, 1 failed, 0 run again, 0 cancelled"' in section
    assert ["ok", "bad"] == [part.partition('"')[0] for part in section.split('<rect class="t-')[1:]]


async def test_a_queue_without_a_log_has_no_chart(reader: Browser, any_queue: Queue) -> None:
    await any_queue.configure(log_level="off")
    page = await reader.text("/queue", name=any_queue.name)

    assert 'id="recent"' not in page
