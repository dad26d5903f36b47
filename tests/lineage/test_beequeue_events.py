"""beequeue and bee-queue: events."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, Queue
from dibs.client.connection import outcome_wait
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import claim_one, run_until_empty, set_handler

# -- events ------------------------------------------------------------------------------------------------


async def test_a_retry_is_told_as_a_retry(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Each event is logged once, with its error. `failed` is only the final failure."""
    set_handler(queue, max_retries=2)
    await queue.enqueue({"fail": 2}, id="succeeds")
    await run_until_empty(app)
    await queue.enqueue({"fail": 9}, id="fails")
    await run_until_empty(app)

    events = await scripted_handlers.read_events(queue, 6)
    assert ["retried", "retried", "completed"] == [event.kind for event in events[:3]]
    assert ["retried", "retried", "failed"] == [event.kind for event in events[3:]]
    errors = [event.error.message if event.error else None for event in events]
    assert ["no 1", "no 2", None, "no 1", "no 2", "no 3"] == errors


async def test_everyone_hears_of_a_job_in_the_same_order(app: Dibs, queue: Queue) -> None:
    """All readers read the same log."""
    await queue.configure(log_level="all")
    async with queue.events() as one, app.queue("q").events() as two:
        await queue.enqueue(1, id="a")
        claim = await claim_one(queue)
        await claim.retry(delay=0)
        await (await claim_one(queue)).complete()
        heard = [[(await anext(reader)).kind for _ in range(5)] for reader in (one, two)]

    assert [["queued", "claimed", "retried", "claimed", "completed"]] * 2 == heard


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_who_follows_is_woken_by_what_happens_as_it_begins(
    app: Dibs, queue: Queue, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """An event between reading the log and waiting is not missed."""
    monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 60)
    await queue.configure(log_level="all")
    request = queue.bind(1, id="a").request
    async with asyncio.timeout(scripted_handlers.TIMEOUT), queue.events() as events:
        coming = asyncio.ensure_future(anext(events))
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.storage.enqueue("q", [request])
        assert "queued" == (await coming).kind


async def test_the_live_feed_has_progress(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
    await queue.enqueue(1, id="a")
    claim = await claim_one(queue)
    async with asyncio.timeout(scripted_handlers.TIMEOUT), queue.events() as events:
        await claim.progress(50)
        event = await anext(events)

    assert ("progress", "a", 50) == (event.kind, event.id, event.progress)


async def test_who_sends_no_events_says_so(queue: Queue) -> None:
    """The log level of the queue applies to all its clients, and does not change the jobs."""
    await queue.configure(log_level="off")
    await queue.enqueue(1, id="a")
    await (await claim_one(queue)).complete()
    await queue.configure(log_level="runs")
    await queue.enqueue(1, id="b")
    await (await claim_one(queue)).complete()

    assert ["b"] == [event.id for event in await scripted_handlers.read_events(queue, 1)]
