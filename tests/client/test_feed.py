"""Feeds: the log of a queue, and live events with progress."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import Any

import pytest

from dibs import Dibs, Event, Queue, Refused
from dibs.client.connection import outcome_wait
from dibs.model.results import EventPage
from dibs_conformance.servers import RedisServer
from tests.client.manual_claims import claimed
from tests.client.verb_counts import counted


@pytest.fixture
def queue(any_queue: Queue) -> Queue:
    return any_queue


@pytest.fixture
def app(any_app: Dibs) -> Dibs:
    return any_app


async def complete_one(queue: Queue, id: str) -> None:
    await queue.enqueue(1, id=id)
    async with claimed(queue) as claim:
        await claim.complete()


async def read(queue: Queue, count: int, after: str | None = "", **chosen: Any) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(30), queue.events(after, **chosen) as feed:
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


async def test_the_live_feed_hears_each_report_and_reads_it_with_one_get(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll would come after an hour, so each value comes by the wake-up of its report."""
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim, asyncio.timeout(60), queue.events() as events:
        monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
        await claim.progress({"done": 0})
        received = [await anext(events)]
        calls = counted(app.storage, monkeypatch)
        for number in (1, 2, 3):
            coming = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await claim.progress({"done": number})
            received.append(await coming)

    assert [(e.kind, e.id, e.fence, e.progress) for e in received] == [
        ("progress", "a", claim.fence, {"done": n}) for n in range(4)
    ]
    assert {verb: calls[verb] for verb in ("report", "get", "list", "events")} == {
        "report": 3,
        "get": 3,
        "list": 0,
        "events": 0,
    }


async def test_a_report_between_two_reads_of_the_live_feed_is_not_missed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim, asyncio.timeout(60), queue.events(kinds=["progress"]) as events:
        monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
        for number in range(5):
            await claim.progress(number)

            assert (await anext(events)).progress == number


async def test_a_trimmed_log_is_told_where_it_was_trimmed(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await complete_one(queue, "a")
    page = await app.storage.events(queue.name)

    async def trimmed(*_args: object, **_named: object) -> EventPage:
        return EventPage(events=page.events, offset=page.offset, fell_off=True)

    monkeypatch.setattr(app.storage, "events", trimmed)

    assert [event.kind for event in await read(queue, 2, "0")] == ["fell_off", "completed"]


async def test_a_slow_reader_loses_nothing_that_is_kept_and_is_told_what_is_not(queue: Queue) -> None:
    for number in range(3):
        await complete_one(queue, f"early-{number}")
    offset = (await read(queue, 1))[0].offset
    async with queue.events(offset) as slow:
        assert (await anext(slow)).id == "early-1"
        await queue.configure(log_bytes=1)
        await complete_one(queue, "lost")
        await queue.prune()
        await queue.configure(log_bytes=1_000_000)
        for number in range(3):
            await complete_one(queue, f"late-{number}")
        async with asyncio.timeout(30):
            received = [await anext(slow) for _ in range(5)]

    # An event that the feed had read ahead, then the gap, then all events that are still in the log.
    assert [event.id or event.kind for event in received] == [
        "early-2",
        "fell_off",
        *(f"late-{n}" for n in range(3)),
    ]


async def test_a_reader_of_an_empty_log_is_told_of_trimmed_events(any_queue: Queue) -> None:
    """The offset of an empty log is "". A program that saved it must learn that it missed events."""
    async with any_queue.events() as live:
        saved = live.offset
        await complete_one(any_queue, "lost")
        await any_queue.configure(log_bytes=1)
        await any_queue.prune()
        await any_queue.configure(log_bytes=1_000_000)
        await complete_one(any_queue, "kept")
        async with asyncio.timeout(30):
            followed = [await anext(live) for _ in range(2)]
    resumed = await read(any_queue, 2, saved)

    for events in (followed, resumed):
        assert ["fell_off", "kept"] == [event.id or event.kind for event in events]


async def test_only_what_was_asked_for_is_handed_out(queue: Queue) -> None:
    for id in "aba":
        await complete_one(queue, id)
    await queue.enqueue(1, id="c")
    await queue.cancel("c")

    assert [event.id for event in await read(queue, 2, ids=["a", "c"], kinds=["completed"])] == ["a", "a"]
    assert [event.id for event in await read(queue, 1, kinds=["cancelled"])] == ["c"]
    assert [event.kind for event in await read(queue, 3, ids={"c", "a"})] == ["completed"] * 2 + ["cancelled"]


async def test_what_was_passed_over_is_not_read_again(queue: Queue) -> None:
    async with queue.events("", ids=["mine"]) as events:
        coming = asyncio.ensure_future(anext(events))
        await complete_one(queue, "other")
        last = (await read(queue, 1))[0].offset
        async with asyncio.timeout(30):
            while events.offset != last:  # noqa: ASYNC110 - no event is returned to wait for
                await asyncio.sleep(0.01)
        await complete_one(queue, "mine")

        assert (await coming).id == "mine"


async def test_the_live_feed_shows_progress_of_the_ids_that_were_asked_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
    await queue.enqueue_many([queue.bind(1, id="a"), queue.bind(2, id="b")])
    async with queue.receive(wait=30) as claims, queue.events(ids=["b"], kinds=["progress"]) as events:
        held = {claim.id: claim for claim in [await anext(claims), await anext(claims)]}
        async with asyncio.timeout(30):
            for value in (0, None, {"deep": [1, "ä"]}):
                await held["a"].progress("not asked for")
                await held["b"].progress(value)

                assert (await anext(events)).progress == value


async def test_a_kind_that_is_not_logged_is_refused_with_what_to_do(queue: Queue) -> None:
    with pytest.raises(Refused, match=re.escape("await queue.configure(log_level='all')")) as refused:
        await read(queue, 1, kinds=["completed", "queued"])
    assert refused.value.field == "kinds"
    await queue.configure(log_level="off")
    with pytest.raises(Refused, match="log_level='runs'"):
        await read(queue, 1, kinds=["completed"])
    await queue.configure(log_level="all")
    await queue.enqueue(1, id="a")

    assert (await read(queue, 1, kinds=["queued"]))[0].id == "a"


async def some_jobs(queue: Queue) -> None:
    await queue.enqueue_many(range(20))
    async with queue.receive(max_jobs=20, lease=3600, wait=0) as claims:
        async for claim in claims:
            await claim.complete()


async def test_a_feed_that_nobody_reads_costs_no_call(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(app.storage, monkeypatch)
    await some_jobs(queue)
    unwatched = calls.copy()
    calls.clear()
    async with queue.events():
        assert calls == {"events": 1}, "to know where now is"
        calls.clear()
        await some_jobs(queue)
        assert calls == unwatched
    async with queue.events("") as events:
        await anext(events)
    calls.clear()
    await some_jobs(queue)

    assert calls == unwatched
    assert not {"events", "wait", "list"} & set(unwatched)


async def test_redis_sends_nobody_what_nobody_waits_for(redis_server: RedisServer) -> None:
    """Of Postgres: test_no_notification_is_sent_without_a_listener, in tests/storage/postgres."""
    async with Dibs(f"{redis_server.url}?prefix=unwatched") as app, app.queue("q").events():
        await some_jobs(app.queue("q"))

        assert [] == [name for name in redis_server.execute("PUBSUB", "CHANNELS") if "unwatched" in name]


async def test_redis_is_asked_for_no_more_once_nobody_follows(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.storage.redis.wakeups import listener

    def followed() -> list[str]:
        return [name for name in redis_server.execute("PUBSUB", "CHANNELS") if "followed" in name]

    monkeypatch.setattr(listener, "LINGER", 0.0)
    async with Dibs(f"{redis_server.url}?prefix=followed") as app, asyncio.timeout(60):
        queue = app.queue("q")
        for id in ("first", "again"):
            async with queue.events() as events:
                coming = asyncio.ensure_future(anext(events))
                while not followed():  # noqa: ASYNC110 - the server knows
                    await asyncio.sleep(0.01)
                await complete_one(queue, id)
                assert (await coming).id == id
            while followed():
                await complete_one(queue, "unread")
                await asyncio.sleep(0.01)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a kind that nothing is": ({"kinds": ["finished"]}, "unknown kinds of events: finished"),
    "progress in the log": ({"after": "", "kinds": ["progress"]}, "leave `after` out"),
    "one kind without a list": ({"kinds": "completed"}, "pass a list"),
    "one id without a list": ({"ids": "order-7"}, "pass a list"),
}


@pytest.mark.parametrize(("chosen", "advice"), WRONG.values(), ids=WRONG)
def test_what_nobody_could_be_told_is_refused(chosen: dict[str, Any], advice: str) -> None:
    with pytest.raises(Refused, match=advice) as refused:
        Dibs("memory:").queue("q").events(**chosen)

    assert refused.value.field in chosen
