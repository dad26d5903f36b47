"""Ticks that fall due during a run: queued, skipped, or in place of the run. In real time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dibs import Dibs, Fixed, Refused, current_job
from dibs.model.events import LogEvent
from dibs.model.schedule import Overlap
from dibs.worker import run

#: Seconds between two ticks.
INTERVAL = 0.4
#: Seconds that a run takes if nothing stops it.
lengths: dict[str, float] = {}
#: The number of runs that have begun, of those that were stopped, and of those that are active now.
started: Counter[str] = Counter()
stopped: Counter[str] = Counter()
active: Counter[str] = Counter()
refused: list[Refused] = []
most_active = 0


@pytest.fixture(autouse=True)
def no_runs_of_another_test() -> None:
    global most_active  # noqa: PLW0603 - functions of a module report to its test
    most_active = 0
    for counter in (lengths, started, stopped, active):
        counter.clear()
    refused.clear()


async def crawl(name: str = "all") -> None:
    global most_active  # noqa: PLW0603
    started[name] += 1
    active[name] += 1
    most_active = max(most_active, active[name])
    try:
        await asyncio.sleep(lengths.get(name, 60))
    except asyncio.CancelledError:
        stopped[name] += 1
        raise
    finally:
        active[name] -= 1


async def hand_off() -> None:
    try:
        current_job().hand_off()
    except Refused as error:
        refused.append(error)


@asynccontextmanager
async def working(url: str, function: Any, **settings: Any) -> AsyncIterator[Dibs]:
    """Declare a task, and run a worker in this process."""
    async with Dibs(url) as app:
        app.task(queue="q", **settings)(function)
        async with worker_of(app):
            yield app


@asynccontextmanager
async def worker_of(app: Dibs) -> AsyncIterator[None]:
    """Run a worker whose heartbeat is too slow to tell a run that it was replaced."""
    worker = asyncio.create_task(run(app, lease=30.0, heartbeat=20.0))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - handlers count in plain dicts
            await asyncio.sleep(0.02)


async def ended(app: Dibs, kind: str) -> list[LogEvent]:
    page = await app.storage.events("q", limit=1000)
    return [event for _, event in page.events if event.kind == kind]


async def test_each_tick_replaces_the_run_before_it(any_url: str) -> None:
    async with working(any_url, crawl, every=INTERVAL, overlap="replace", max_retries=5) as app:
        await wait_until(lambda: started["all"] >= 4)
        assert len(await ended(app, "cancelled")) >= 3

    assert stopped["all"] >= 3
    assert most_active == 1


@pytest.mark.parametrize("overlap", ["queue", "skip"])
async def test_a_run_goes_on_and_its_tick_is_queued_or_skipped(any_url: str, overlap: Overlap) -> None:
    lengths["all"] = 1.3 * INTERVAL
    async with working(any_url, crawl, every=INTERVAL, overlap=overlap) as app:
        await wait_until(lambda: started["all"] >= 4)
        assert stopped["all"] == 0
        runs = (await ended(app, "completed"))[1:]

    # A tick that falls due during a run of 1.3 intervals waits for its end, unless it is skipped.
    waits = [(one.claimed_at or 0) - one.run_at for one in runs]
    assert most_active == 1
    assert (min(waits) > 100) if overlap == "queue" else (min(waits) < 100)


async def test_a_schedule_made_at_run_time_replaces_too(any_url: str) -> None:
    async with working(any_url, crawl) as app:
        schedules = app.queue("q").schedules
        call = app.queue("q").bind({"args": ["a"], "kwargs": {}})
        made = await schedules.set("a", call, every=INTERVAL, overlap="replace")
        await wait_until(lambda: started["a"] >= 3)
        assert await schedules.get("a") is not None

    assert made.overlap == "replace"


async def test_the_run_of_a_dead_worker_comes_back_and_is_replaced_at_the_next_tick(any_url: str) -> None:
    async with Dibs(any_url) as app:
        app.task(queue="q", backoff=Fixed(0))(crawl)
        call = app.queue("q").bind({"args": ["a"], "kwargs": {}})
        await app.queue("q").schedules.set("a", call, every=INTERVAL, overlap="replace")
        await asyncio.sleep(1.2 * INTERVAL)
        lease = (await app.storage.grant(["q"], 300, "dead")).lease
        [job] = (await app.storage.claim("q", lease, 1)).jobs
        async with worker_of(app):
            await wait_until(lambda: started["a"] >= 2)
        stalls = [event.id for event in await ended(app, "stalled")]

    assert [job.id] == stalls
    assert stopped["a"] >= 1
    assert most_active == 1


async def test_a_removed_or_paused_schedule_replaces_nothing(any_url: str) -> None:
    async with working(any_url, crawl) as app:
        schedules = app.queue("q").schedules
        for name in ("removed", "paused"):
            lengths[name] = 6 * INTERVAL
            call = app.queue("q").bind({"args": [name], "kwargs": {}})
            await schedules.set(name, call, every=INTERVAL, overlap="replace")
        await wait_until(lambda: len(active) == 2)
        await schedules.remove("removed")
        await schedules.pause("paused")
        before = started.copy(), stopped.copy()
        await wait_until(lambda: not any(active.values()))
        await asyncio.sleep(2 * INTERVAL)
        assert before == (started, stopped)


async def test_a_run_that_may_be_replaced_cannot_be_handed_off(any_url: str) -> None:
    async with working(any_url, hand_off, every=INTERVAL, overlap="replace"):
        await wait_until(lambda: bool(refused))

    assert refused[0].field == "hand_off"
