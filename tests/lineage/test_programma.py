"""Programma: jobs as rows with attributes, start dates, redelivery, and movers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, Queue, Refused, UnknownOption, open_storage
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    claim_one,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)

HOSTILE = ("it's", "'; drop table jobs; --", '"}]', "{q}", "$1", "%(x)s", "\\u0027", "ключ", "a:b/c\nd")


# -- jobs and states ---------------------------------------------------------------------------------------


async def test_a_job_tells_all_that_is_known_of_it(queue: Queue) -> None:
    """The status has queue, id, state, data, attributes, limits and attempts, and the times of the job."""
    at = datetime(2100, 1, 1, tzinfo=UTC)
    id = (await queue.enqueue({"to": "x"}, run_at=at, attributes={"who": "me"}, lease=30)).id
    status = await queue.get(id)

    assert status is not None
    assert ("q", id, "waiting", at, {"who": "me"}) == (
        status.queue,
        status.id,
        status.state,
        status.run_at,
        status.attributes,
    )
    assert ({"to": "x"}, {"lease": 30}) == (status.data, status.limits)
    assert (None, 0, "") == (status.claimed_at, status.attempts, status.lease)
    assert status.enqueued_at is not None
    assert None is await queue.get("unknown, and no uuid")


async def test_every_state_has_a_name(queue: Queue) -> None:
    """The states created and processing are called waiting and handed off in dibs."""
    seen = []
    for end in ("complete", "fail"):
        await queue.enqueue(1, id="a")
        seen.append(await queue.get("a"))
        claim = await claim_one(queue)
        seen.append(await queue.get("a"))
        await (claim.complete() if end == "complete" else claim.fail("no"))
        seen.append(await queue.get("a"))
    await queue.enqueue(1, id="a")
    await (await claim_one(queue)).hand_off()
    seen.append(await queue.get("a"))

    states = [status.state if status else None for status in seen]
    assert ["waiting", "active", "completed", "waiting", "active", "failed", "handed_off"] == states


@pytest.mark.parametrize("data", [{"to": "x"}, [1, 2], None, 0, "text", False])
async def test_any_json_is_data(queue: Queue, data: Any) -> None:
    await queue.enqueue(data)

    assert data == (await claim_one(queue)).data


async def test_a_bad_job_is_an_exception_and_no_row(app: Dibs, queue: Queue) -> None:
    """Promise 7: Refused means that no job was written."""
    for bad in (
        {"attributes": [1]},
        {"attributes": {"x": object()}},
        {"run_at": "2100-01-01"},
        {"topic": "q"},
    ):
        settings: Any = bad
        with pytest.raises(Refused) as refused:
            await queue.enqueue(1, **settings)
        assert refused.value.field
    with pytest.raises(Refused):
        app.queue("")

    assert 0 == (await queue.counts()).waiting


# -- start times -------------------------------------------------------------------------------------------


async def test_a_date_is_a_time_with_a_zone(queue: Queue) -> None:
    """run_at is a datetime with a time zone; other values are refused."""
    at = datetime.now(UTC) + timedelta(days=1)
    await queue.enqueue(1, id="a", run_at=at)
    status = await queue.get("a")

    assert status is not None
    assert status.run_at is not None
    assert abs(status.run_at - at) <= timedelta(milliseconds=1)
    for bad in (datetime(2100, 1, 1), "2100-01-01T00:00:00Z", "soon", 4_000_000_000):  # noqa: DTZ001 - a naive datetime is the test
        with pytest.raises(Refused):
            await queue.enqueue(1, run_at=bad)  # type: ignore[arg-type]


async def test_a_date_and_a_delay_are_not_both_given(queue: Queue) -> None:
    with pytest.raises(Refused, match="pass only one"):
        await queue.enqueue(1, run_at=datetime.now(UTC), delay=5)
    with pytest.raises(Refused):
        await queue.enqueue(1, delay=-1)


async def test_a_start_date_can_be_changed_while_the_job_waits(queue: Queue) -> None:
    """run_at of a waiting job can be amended; of an active or ended job it has no effect."""
    later = datetime(2100, 1, 1, tzinfo=UTC)
    await queue.enqueue(1, id="a", run_at=later)
    assert "amended" == await queue.amend("a", delay=0)
    claim = await claim_one(queue)
    assert "active" == await queue.amend("a", run_at=later)
    await claim.complete()
    assert "not_found" == await queue.amend("a", run_at=later)

    status = await queue.get("a")
    assert status is not None
    assert "completed" == status.state


# -- attributes --------------------------------------------------------------------------------------------


async def test_attributes_merge_at_the_top_level(queue: Queue) -> None:
    """amend merges attributes in every live state, replaces nested values, and keeps the data."""
    await queue.enqueue(1, id="a", attributes={"kept": 1, "nested": {"x": 1}})
    await queue.amend("a", attributes={"nested": {"y": 2}})
    claim = await claim_one(queue)
    await queue.amend("a", attributes={"more": [None]})
    status = await queue.get("a")

    assert status is not None
    assert {"kept": 1, "nested": {"y": 2}, "more": [None]} == status.attributes
    assert 1 == claim.data
    assert "not_found" == await queue.amend("unknown", attributes={"x": 1})


@pytest.mark.parametrize("bad", [[1], "text", 5, {"x": object()}, {1: 2}])
async def test_attributes_that_are_no_mapping_to_json_are_refused(queue: Queue, bad: Any) -> None:
    await queue.enqueue(1, id="a", attributes={"x": 1})
    with pytest.raises(Refused):
        await queue.amend("a", attributes=bad)

    status = await queue.get("a")
    assert status is not None
    assert {"x": 1} == status.attributes


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_of_a_caller_is_ever_code(app: Dibs, text: str) -> None:
    """Any text is stored unchanged as attribute, value, data, id or queue."""
    queue, other = app.queue(f"q {text}"), app.queue("other")
    await other.enqueue("untouched", id="other")
    await queue.enqueue(text, id=text, attributes={text: text})
    await queue.amend(text, attributes={f"{text}2": [text]})
    status = await queue.get(text)

    assert status is not None
    assert {text: text, f"{text}2": [text]} == status.attributes
    claim = await claim_one(queue)
    assert (text, text) == (claim.id, claim.data)
    await claim.fail(text)
    assert (1, 1) == ((await queue.counts()).failed, (await other.counts()).waiting)


# -- polling -----------------------------------------------------------------------------------------------


async def test_handlers_are_awaited_and_one_that_raises_concerns_no_other(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Promise 6: the jobs of a batch are independent. The exception of a handler is its job's error."""
    set_handler(queue, max_retries=0)
    tickets = await queue.enqueue_many([{"fail": 1}, {"return": "fine"}, {"exit": True}, {"return": "too"}])
    await run_until_empty(app)

    states = [(await ticket.status()).state for ticket in tickets]
    assert ["failed", "completed", "failed", "completed"] == states


async def test_the_first_look_is_at_once(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The worker claims at its start, and active handlers do not block claims."""
    set_handler(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with running_worker(app, poll=60):
        await record.wait_for_hold()
        await queue.enqueue(1, id="b")
        await wait_for_event(queue, "completed")
        assert ["a", "b"] == record.ran


async def test_by_hand_no_more_is_held_than_was_asked_for(queue: Queue) -> None:
    """receive(max_jobs=n) holds at most n jobs; a settlement lets it claim the next."""
    await queue.enqueue_many(range(5))
    async with queue.receive(max_jobs=2, wait=0) as claims:
        held = [await anext(claims), await anext(claims)]
        with pytest.raises(StopAsyncIteration):
            await anext(claims)
        await held[0].complete()
        assert 2 == (await anext(claims)).data
        assert 2 == (await queue.counts()).active

    assert (0, 4) == ((await queue.counts()).active, (await queue.counts()).waiting)


async def test_an_app_can_be_opened_again(storage_url: str) -> None:
    """An app can be closed and opened again, and finds its jobs."""
    app = Dibs(storage_url)
    for number in range(3):
        async with app:
            await app.queue("q").enqueue(number)
            assert number + 1 == (await app.queue("q").counts()).waiting


async def test_what_cannot_be_opened_is_raised(storage_url: str) -> None:
    """The call that opens the storage raises the error."""
    app = Dibs(storage_url, nonsense=True)
    with pytest.raises(UnknownOption):
        await app.queue("q").enqueue(1)
    with pytest.raises(UnknownOption):
        async with app:
            pass


async def test_two_places_share_nothing(storage_url: str, other_url: str) -> None:
    async with open_storage(storage_url) as one, open_storage(other_url) as two:
        await one.grant(["q"], 1000, "me")

        assert [] == [info.name for info in await two.queues()]
