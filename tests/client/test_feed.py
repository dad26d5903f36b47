"""The events of a queue, as people read them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from dibs import Dibs, Event, Queue
from dibs.client import feed
from dibs.model.answers import EventPage
from tests.client.byhand import claimed


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("q")


async def complete_one(queue: Queue, id: str) -> None:
    await queue.enqueue(1, id=id)
    async with claimed(queue) as claim:
        await claim.complete()


async def read(queue: Queue, count: int, after: str | None = "") -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(10), queue.events(after) as feed:
        while len(events) < count:
            events.append(await anext(feed))
    return events


async def test_the_log_from_its_start(queue: Queue) -> None:
    for id in "abc":
        await complete_one(queue, id)

    events = await read(queue, 3)
    assert [(event.kind, event.id, event.attempt) for event in events] == [
        ("completed", id, 1) for id in "abc"
    ]
    assert all(a.offset < b.offset for a, b in pairwise(events))
    assert events[0].finished_at is not None
    assert events[0].holder


async def test_reading_goes_on_after_an_offset(queue: Queue) -> None:
    for id in "abc":
        await complete_one(queue, id)
    offset = (await read(queue, 1))[0].offset

    assert [event.id for event in await read(queue, 2, offset)] == ["b", "c"]


async def test_the_offset_is_that_of_the_latest_event_handed_out(queue: Queue) -> None:
    for id in "ab":
        await complete_one(queue, id)
    async with queue.events("") as events:
        first = await anext(events)
        assert events.offset == first.offset

    assert [event.id for event in await read(queue, 1, events.offset)] == ["b"]


async def test_the_live_feed_begins_when_it_is_entered(queue: Queue) -> None:
    await complete_one(queue, "before")
    async with queue.events() as events:
        await complete_one(queue, "after")

        assert (await anext(events)).id == "after"


async def test_who_waits_is_woken_by_an_event(queue: Queue) -> None:
    async with queue.events() as events:
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await complete_one(queue, "a")

        assert (await coming).id == "a"


async def test_the_live_feed_shows_progress(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SLOW_POLL", 0.01)
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim, queue.events() as events:
        coming = asyncio.ensure_future(anext(events))
        await claim.progress({"done": 1})
        first = await coming
        await claim.progress({"done": 2})
        second = await anext(events)

    assert [(e.kind, e.id, e.fence, e.progress) for e in (first, second)] == [
        ("progress", "a", claim.fence, {"done": n}) for n in (1, 2)
    ]


async def test_a_reader_that_fell_off_the_end_is_told(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await complete_one(queue, "a")
    page = await app.storage.events("q")

    async def trimmed(*_args: object, **_named: object) -> EventPage:
        return EventPage(events=page.events, offset=page.offset, fell_off=True)

    monkeypatch.setattr(app.storage, "events", trimmed)

    assert [event.kind for event in await read(queue, 2, "0")] == ["fell_off", "completed"]
