"""Programma: jobs as rows with attributes, start dates, redelivery, and movers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, Queue, Refused, UnknownOption, open_storage
from tests.lineage import actors
from tests.lineage.actors import claimed, play, told, work, working
from tests.lineage.clerk import START, Clerk

HOSTILE = ("it's", "'; drop table jobs; --", '"}]', "{q}", "$1", "%(x)s", "\\u0027", "ключ", "a:b/c\nd")


# -- what a job is -----------------------------------------------------------------------------------------


async def test_a_job_tells_all_that_is_known_of_it(queue: Queue) -> None:
    """Queue, id, state, attributes, the time it starts, was enqueued and was claimed, and its attempts."""
    at = datetime(2100, 1, 1, tzinfo=UTC)
    id = (await queue.enqueue({"to": "x"}, run_at=at, attributes={"who": "me"})).id
    status = await queue.get(id)

    assert status is not None
    assert ("q", id, "waiting", at, {"who": "me"}) == (
        status.queue,
        status.id,
        status.state,
        status.run_at,
        status.attributes,
    )
    assert (None, 0) == (status.claimed_at, status.attempts)
    assert status.enqueued_at is not None
    assert None is await queue.get("unknown, and no uuid")


async def test_every_state_has_a_name(queue: Queue) -> None:
    """created, active, processing, completed, failed: waiting, active, handed off, completed, failed."""
    seen = []
    for end in ("complete", "fail"):
        await queue.enqueue(1, id="a")
        seen.append(await queue.get("a"))
        claim = await claimed(queue)
        seen.append(await queue.get("a"))
        await (claim.complete() if end == "complete" else claim.fail("no"))
        seen.append(await queue.get("a"))
    await queue.enqueue(1, id="a")
    await (await claimed(queue)).hand_off()
    seen.append(await queue.get("a"))

    states = [status.state if status else None for status in seen]
    assert ["waiting", "active", "completed", "waiting", "active", "failed", "handed_off"] == states


@pytest.mark.parametrize("data", [{"to": "x"}, [1, 2], None, 0, "text", False])
async def test_any_json_is_data(queue: Queue, data: Any) -> None:
    await queue.enqueue(data)

    assert data == (await claimed(queue)).data


async def test_a_bad_job_is_an_exception_and_no_row(app: Dibs, queue: Queue) -> None:
    """Promise 7: refused says that nothing happened; no None that somebody may overlook."""
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


# -- when it starts ----------------------------------------------------------------------------------------


async def test_a_date_is_a_time_with_a_zone(queue: Queue) -> None:
    """Never ignored and never guessed: a datetime counts, one without a zone or as text is refused."""
    at = datetime.now(UTC) + timedelta(days=1)
    await queue.enqueue(1, id="a", run_at=at)
    status = await queue.get("a")

    assert status is not None
    assert status.run_at is not None
    assert abs(status.run_at - at) <= timedelta(milliseconds=1)
    for bad in (datetime(2100, 1, 1), "2100-01-01T00:00:00Z", "soon", 4_000_000_000):  # noqa: DTZ001 - the case
        with pytest.raises(Refused):
            await queue.enqueue(1, run_at=bad)  # type: ignore[arg-type]


async def test_a_date_and_a_delay_are_not_both_given(queue: Queue) -> None:
    with pytest.raises(Refused, match="pass only one"):
        await queue.enqueue(1, run_at=datetime.now(UTC), delay=5)
    with pytest.raises(Refused):
        await queue.enqueue(1, delay=-1)


async def test_a_delay_counts_by_the_clock_of_the_storage(clerk: Clerk) -> None:
    """Contract 1, Time: one clock per storage, and no client's decides anything."""
    await clerk.put(delay=5000)

    assert START + 5000 == (await clerk.current()).run_at


async def test_a_start_date_can_be_changed_while_the_job_waits(queue: Queue) -> None:
    """A run, or an end, is no longer a matter of when it starts."""
    later = datetime(2100, 1, 1, tzinfo=UTC)
    await queue.enqueue(1, id="a", run_at=later)
    assert "amended" == await queue.amend("a", delay=0)
    claim = await claimed(queue)
    assert "active" == await queue.amend("a", run_at=later)
    await claim.complete()
    assert "not_found" == await queue.amend("a", run_at=later)

    status = await queue.get("a")
    assert status is not None
    assert "completed" == status.state


# -- attributes --------------------------------------------------------------------------------------------


async def test_attributes_merge_at_the_top_level(queue: Queue) -> None:
    """In every live state; a nested value is replaced whole, and the data stay as they were."""
    await queue.enqueue(1, id="a", attributes={"kept": 1, "nested": {"x": 1}})
    await queue.amend("a", attributes={"nested": {"y": 2}})
    claim = await claimed(queue)
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
    """As attribute, value, data, id or queue: what comes out is what went in, and nothing else happens."""
    queue, other = app.queue(f"q {text}"), app.queue("other")
    await other.enqueue("untouched", id="other")
    await queue.enqueue(text, id=text, attributes={text: text})
    await queue.amend(text, attributes={f"{text}2": [text]})
    status = await queue.get(text)

    assert status is not None
    assert {text: text, f"{text}2": [text]} == status.attributes
    claim = await claimed(queue)
    assert (text, text) == (claim.id, claim.data)
    await claim.fail(text)
    assert (1, 1) == ((await queue.counts()).failed, (await other.counts()).waiting)


# -- polling -----------------------------------------------------------------------------------------------


async def test_handlers_are_awaited_and_one_that_raises_concerns_no_other(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Promise 6: a batch is a list of independent jobs; what an async handler raises is its job's error."""
    play(queue, max_retries=0)
    tickets = await queue.enqueue_many([{"fail": 1}, {"return": "fine"}, {"exit": True}, {"return": "too"}])
    await work(app)

    states = [(await ticket.status()).state for ticket in tickets]
    assert ["failed", "completed", "failed", "completed"] == states


async def test_the_first_look_is_at_once(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Not after a first heartbeat; and running handlers hold up no claim."""
    play(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with working(app, poll=60):
        await stage.arrived()
        await queue.enqueue(1, id="b")
        await told(queue, "completed")
        assert ["a", "b"] == stage.ran


async def test_by_hand_no_more_is_held_than_was_asked_for(queue: Queue) -> None:
    """receive(max_jobs=n): a claim takes no more than may be held; what is settled makes room."""
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
    """start, shutdown, start: the jobs are as they were where the place is kept."""
    app = Dibs(storage_url)
    for number in range(3):
        async with app:
            await app.queue("q").enqueue(number)
            assert number + 1 == (await app.queue("q").counts()).waiting


async def test_what_cannot_be_opened_is_raised(storage_url: str) -> None:
    """By the call that wanted it; nothing is told to a listener that may not be there."""
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
