"""queasy: what an enqueue answers and refuses, and what the log has of an id."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from dibs import Dibs, Queue, Refused, Update
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import set_handler

# -- an id without an active run -------------------------------------------------------------------------


async def test_an_enqueue_says_what_it_did_by_default(queue: Queue) -> None:
    """The ticket has id and revision. A second enqueue of a waiting id replaces its data, time and counts."""
    first = await queue.enqueue({"to": "x"}, id="a", delay=60)
    second = await queue.enqueue({"to": "y"}, id="a")

    assert [("a", "queued"), ("a", "updated")] == [(t.id, t.verdict) for t in (first, second)]
    assert first.revision < second.revision
    async with queue.receive(wait=0) as claims:
        assert [{"to": "y"}] == [claim.data async for claim in claims]


# -- refused requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [math.nan, math.inf, -1, "soon"])
async def test_a_delay_that_is_no_length_of_time_is_refused(queue: Queue, delay: float) -> None:
    with pytest.raises(Refused):
        await queue.enqueue(1, id="a", delay=delay)

    assert await queue.get("a") is None


async def test_none_is_data_and_what_json_cannot_say_is_refused(queue: Queue) -> None:
    await queue.enqueue(None, id="none")
    for value in (object(), {1, object()}, math.nan, "\0", "\ud800"):
        with pytest.raises(Refused):
            await queue.enqueue(value, id="bad")

    async with queue.receive(wait=0) as claims:
        assert [None] == [claim.data async for claim in claims]


async def test_ids_are_given_or_drawn(app: Dibs, queue: Queue) -> None:
    """Generated ids sort by time. A given id is any text of 1 to 512 bytes without a null character."""
    drawn = [(await queue.enqueue(1)).id for _ in range(20)]
    given = [(await queue.enqueue(1, id=id)).id for id in ("a/b:c", "é'\"%{}", "x" * 512)]

    assert drawn == sorted(set(drawn))
    assert ["a/b:c", "é'\"%{}", "x" * 512] == given
    for id in ("", "x" * 513, "a\0b"):
        with pytest.raises(Refused):
            await queue.enqueue(1, id=id)


async def test_a_time_in_the_past_is_now(queue: Queue) -> None:
    """A time in the past is due now. A datetime without a time zone is refused."""
    await queue.enqueue(1, run_at=datetime(1999, 1, 1, tzinfo=UTC))
    with pytest.raises(Refused):
        await queue.enqueue(2, run_at=datetime(1999, 1, 1))  # noqa: DTZ001 - a naive datetime is the test

    async with queue.receive(wait=0) as claims:
        assert [1] == [claim.data async for claim in claims]


async def test_a_handler_may_enqueue_its_own_id_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can repeat itself: an enqueue of its own id runs after the current run."""
    set_handler(queue)
    record.queue = queue
    await queue.enqueue({"repeat": 3}, id="a")
    await scripted_handlers.run_until_empty(app)

    assert ["blocked"] * 3 == record.notes
    assert (["a"] * 4, 1) == (record.ran, record.max_active)


async def test_what_happens_to_an_id_is_in_the_log(queue: Queue) -> None:
    """Level `all` logs queued, updated, blocked, promoted and claimed. All levels log ends of attempts."""
    await queue.configure(log_level="all")
    await queue.enqueue(1, id="a")
    await queue.enqueue(2, id="a", on_conflict=Update(data=False))
    async with queue.receive(wait=0) as claims:
        claim = await anext(claims)
        await queue.enqueue(3, id="a")
        await claim.retry(delay=0)
        claim = await anext(claims)
        await queue.enqueue(4, id="a")
        await claim.fail("no")
    await queue.cancel("a")

    kinds = [event.kind for event in await scripted_handlers.read_events(queue, 11)]
    assert ["configured", "queued", "updated", "claimed", "blocked", "retried"] == kinds[:6]
    assert ["claimed", "blocked", "failed", "promoted", "cancelled"] == kinds[6:]
