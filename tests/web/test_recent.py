"""The chart of the last hours of a queue, from the log."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dibs import Dibs, Queue
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, SettleAction, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading import recent
from dibs.web.reading.recent import Recent, RecentChart
from tests.web.conftest import Browser, browse, may
from tests.web.jobs import complete, fail

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
