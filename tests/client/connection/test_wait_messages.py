"""WaitTimeout and OutcomeNotKept say what the storage showed, on every storage."""

from __future__ import annotations

import asyncio
import re

import pytest

from dibs import Dibs, OutcomeNotKept, Queue, Refused, Reject, Ticket, Update, WaitTimeout
from tests.client.manual_claims import claimed


async def timeout_text(ticket: Ticket[object]) -> str:
    with pytest.raises(WaitTimeout) as caught:
        await ticket.result(0.01)
    return str(caught.value).partition("did not end in time: ")[2]


async def test_a_timeout_says_where_the_job_is(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1, id="a")
    assert "it was never claimed. Is a worker running for this queue" in await timeout_text(ticket)

    async with claimed(any_queue):
        assert "attempt 1 is active" in await timeout_text(ticket)
        after = await any_queue.enqueue(2, id="a")
        assert "waits until the active run of the same id ends (attempt 1)" in await timeout_text(after)


async def test_a_timeout_after_a_retry_names_the_attempt(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1)
    async with claimed(any_queue) as claim:
        await claim.retry(delay=3600)

    assert re.search(r"waits again after attempt 1 and is due at \d{4}-", await timeout_text(ticket))


async def test_a_timeout_of_a_scheduled_job_names_its_time(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1, delay=3600)

    assert re.match(r"it was never claimed and is due at \d{4}-\d\d-\d\dT", await timeout_text(ticket))


async def test_an_outcome_that_a_later_run_replaced_is_explained(any_queue: Queue) -> None:
    first = await any_queue.enqueue(1, id="hot")
    for number in range(2):
        async with claimed(any_queue) as claim:
            await claim.complete(number)
        if number == 0:
            await any_queue.enqueue(2, id="hot")

    with pytest.raises(OutcomeNotKept, match=f"revision {first.revision} .*a later run of the same id"):
        await first.result(0)


async def test_a_live_id_without_the_outcome_is_explained(any_queue: Queue) -> None:
    first = await any_queue.enqueue(1, id="hot", retention=0)
    async with claimed(any_queue) as claim:
        await claim.complete(1)
    await any_queue.enqueue(2, id="hot")

    async with asyncio.timeout(60):
        with pytest.raises(OutcomeNotKept, match="enqueued again, and that job is live"):
            await first.result(0)


async def test_an_enqueue_that_the_storage_does_not_know_may_have_been_lost(any_queue: Queue) -> None:
    """A failover may lose an accepted enqueue; the storage cannot tell it from an outcome that expired."""
    ticket = await any_queue.enqueue(1, id="a")
    await any_queue.forget("a")
    with pytest.raises(
        OutcomeNotKept, match=f"revision {ticket.revision}.* expired .*Or the storage lost it"
    ):
        await ticket.result(0)


@pytest.mark.parametrize("rule", [Reject, Update])
async def test_a_class_as_on_conflict_is_told_to_be_called(rule: type) -> None:
    with pytest.raises(Refused, match=rf"write {rule.__name__}\(\)") as refused:
        await Dibs("memory:").queue("q").enqueue(1, on_conflict=rule)  # type: ignore[arg-type]

    assert "on_conflict" == refused.value.field
