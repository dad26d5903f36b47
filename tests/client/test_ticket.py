"""A ticket waits for exactly its own enqueue (contract 1, Done)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dibs import (
    ConfigurationError,
    Dibs,
    JobCancelled,
    JobFailed,
    OutcomeNotKept,
    Queue,
    Reject,
    Retention,
    WaitTimeout,
)
from dibs.client.connection import outcome_wait
from tests.client import handlers
from tests.client.manual_claims import claimed


@pytest.fixture
def queue(any_queue: Queue) -> Queue:
    return any_queue


@pytest.fixture
def app(any_app: Dibs) -> Dibs:
    return any_app


async def test_the_result_of_a_job_that_has_ended(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await claim.complete({"answer": 42})

    assert await ticket.result(0) == {"answer": 42}
    assert (await ticket.status()).state == "completed"


async def test_the_tickets_of_a_batch_are_a_sequence(queue: Queue) -> None:
    tickets = await queue.enqueue_many([1, queue.bind(2, id="b"), 3])
    await queue.cancel("b")

    assert len(tickets) == 3
    assert f"<3 tickets of {queue.name}>" == repr(tickets)
    assert list(tickets) == [tickets[0], tickets[1], tickets[-1]], "each is made once"
    assert tickets[1:] == [tickets[1], tickets[2]]
    assert tickets[1] in tickets
    assert [("b", "queued")] == [(ticket.id, ticket.verdict) for ticket in tickets[1:2]]
    assert [(await ticket.status()).state for ticket in tickets] == ["waiting", "cancelled", "waiting"]


async def test_a_result_of_none_is_a_result(queue: Queue) -> None:
    ticket = await queue.enqueue(1)
    async with claimed(queue) as claim:
        await claim.complete()

    assert await ticket.result(0) is None


async def test_a_job_that_failed_tells_what_was_kept_of_its_error(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await claim.fail(ValueError("no such user"))

    story = f"{queue.name}/a failed permanently after 1 attempt: ValueError: no such"
    with pytest.raises(JobFailed, match=story) as failed:
        await ticket.result(0)
    assert (failed.value.queue, failed.value.id, failed.value.error.type) == (queue.name, "a", "ValueError")


async def test_a_job_that_was_cancelled(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")

    assert await ticket.cancel() == "cancelled"
    with pytest.raises(JobCancelled):
        await ticket.result(0)


async def test_an_outcome_that_is_not_kept(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a", retention=Retention(completed=0))
    async with claimed(queue) as claim:
        await claim.complete("gone")

    with pytest.raises(OutcomeNotKept):
        await ticket.result(0)
    assert (await ticket.status()).state == "not_kept"


async def test_a_successor_is_not_done_when_the_run_before_it_is(queue: Queue) -> None:
    first = await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        second = await queue.enqueue(2, id="a")
        assert (second.verdict, (await second.status()).state) == ("blocked", "blocked")
        await claim.complete("first")

        assert await first.result(0) == "first"
        with pytest.raises(WaitTimeout):
            await second.result(0)
    async with claimed(queue) as claim:
        await claim.complete("second")

    assert await second.result(0) == "second"
    with pytest.raises(OutcomeNotKept):
        await first.result(0)


async def test_a_duplicate_waits_for_what_it_is_a_duplicate_of(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    duplicate = await queue.enqueue(2, id="a", on_conflict=Reject())
    async with claimed(queue) as claim:
        await claim.complete("the first")

    assert duplicate.verdict == "duplicate"
    assert await duplicate.result(0) == "the first"


async def test_a_rejected_enqueue_of_what_is_done_has_its_outcome(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await claim.complete("before")
    again = await queue.enqueue(2, id="a", on_conflict=Reject())

    assert again.verdict == "completed"
    assert await again.result(0) == "before"


async def test_a_repeat_with_a_generated_id_gets_the_ticket_of_the_first(queue: Queue) -> None:
    first = await queue.enqueue(1, request_key="k")
    again = await queue.enqueue(1, request_key="k")
    (batched,) = await queue.enqueue_many([queue.bind(1, request_key="k")])
    async with claimed(queue) as claim:
        await claim.complete("once")

    assert [first.id] * 2 == [again.id, batched.id]
    assert ("once", "once") == (await again.result(0), await batched.result(0))


async def test_a_ticket_can_be_made_again_elsewhere(queue: Queue) -> None:
    revision = (await queue.enqueue(1, id="a")).revision
    async with claimed(queue) as claim:
        await claim.complete("done")

    assert await queue.ticket("a", revision).result(0) == "done"


async def test_a_result_that_is_not_what_the_handler_promised_is_an_error(app: Dibs, queue: Queue) -> None:
    task = app.task(queue=queue.name)(handlers.thumbnail)
    ticket = await task.enqueue("a")
    async with claimed(task.queue) as claim:
        await claim.complete(5)

    with pytest.raises(ConfigurationError, match="return type"):
        await ticket.result(0)


async def test_a_rejected_enqueue_of_what_failed_has_its_error(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await claim.fail("before")
    again = await queue.enqueue(2, id="a", on_conflict=Reject(failed=True))

    assert again.verdict == "failed"
    with pytest.raises(JobFailed, match="before"):
        await again.result(0)


async def test_progress_comes_as_it_is_reported_until_the_enqueue_has_ended(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll would come after an hour, so each value comes by the wake-up of its report."""
    monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
    ticket = await queue.enqueue(1, id="a")
    received, later = [], ticket
    async with asyncio.timeout(60), claimed(queue) as claim:
        await claim.progress("before")
        async for value in ticket.progress():
            received.append(value)
            if len(received) < 4:
                await claim.progress({"done": len(received)})
            else:
                later = await queue.enqueue(2, id="a")
                await claim.complete("end")

    assert ["before", {"done": 1}, {"done": 2}, {"done": 3}] == received
    assert "end" == await ticket.result(0)
    assert "waiting" == (await later.status()).state


async def test_who_waits_for_progress_is_woken_by_a_report_and_by_the_end(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_wait, "WAIT_SECONDS", 3600)
    ticket = await queue.enqueue(1, id="a")
    values = ticket.progress()
    async with asyncio.timeout(60), claimed(queue) as claim:
        coming = asyncio.ensure_future(anext(values))
        await asyncio.sleep(0.05)
        await claim.progress(1)
        first = await coming
        ending = asyncio.ensure_future(anext(values, "ended"))
        await asyncio.sleep(0.05)
        await claim.complete()

        assert [1, "ended"] == [first, await ending]


async def test_progress_of_another_run_of_the_id_is_not_that_of_the_ticket(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with asyncio.timeout(60):
        async with claimed(queue) as claim:
            await claim.progress("first run")
            ticket = await queue.enqueue(2, id="a")
            coming = asyncio.ensure_future(anext(ticket.progress()))
            await asyncio.sleep(0.05)
            await claim.complete()
        async with claimed(queue) as claim:
            await claim.progress("second run")

            assert "second run" == await coming
            await claim.complete()


async def test_the_reason_of_a_cancellation_is_in_the_error(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a", start_by=0.001)
    await asyncio.sleep(0.01)
    async with queue.receive(wait=0) as claims:
        assert [] == [claim async for claim in claims]

    with pytest.raises(JobCancelled, match="StartDeadlinePassed") as cancelled:
        await ticket.result(0)
    assert "StartDeadlinePassed" == cancelled.value.error.type


async def test_a_deadline_of_the_start_is_stored_with_the_job(queue: Queue) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    before = datetime.now(UTC)
    exact = await (await queue.enqueue(1, id="a", start_by=at)).status()
    relative = (await (await queue.enqueue(1, id="b", start_by="5m")).status()).limits["start_by"]
    none = await (await queue.enqueue(1, id="c", start_by=None)).status()

    assert {"start_by": at} == exact.limits
    assert timedelta(seconds=299) < relative - before < timedelta(seconds=360)
    assert {"start_by": None} == none.limits
