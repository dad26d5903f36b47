"""Programma: the claim, redelivery, and who moves a job where."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import LeaseLost, Queue, Refused
from dibs.model.job import Overrides
from dibs.model.requests import Complete, HandOff, JobPatch
from tests.lineage.actors import claimed
from tests.lineage.clerk import Clerk, fence_of

# -- the claim ---------------------------------------------------------------------------------------------


async def test_claims_at_the_same_time_never_overlap(clerk: Clerk) -> None:
    """Four callers of twenty each over fifty rows take fifty different ones."""
    for number in range(50):
        await clerk.put(f"{number:02}")
    leases = [await clerk.lease() for _ in range(4)]
    taken = await asyncio.gather(*(clerk.claim(20, lease) for lease in leases))

    ids = [job.id for jobs in taken for job in jobs]
    assert (50, 50) == (len(ids), len(set(ids)))


async def test_a_claim_returns_what_it_took_in_order(clerk: Clerk) -> None:
    """Ties in time are broken by the place in line, not by the id."""
    ids = [f"{(number * 7) % 20:02}" for number in range(20)]
    for id in ids:
        await clerk.put(id)

    assert ids == [job.id for job in await clerk.claim()]


async def test_a_job_that_is_not_settled_in_time_is_delivered_again(clerk: Clerk) -> None:
    """At least once: the time counts from the claim or its last renewal; each delivery is counted."""
    await clerk.put(overrides=Overrides(lease=30_000))
    for attempt in (1, 2, 3):
        job = await clerk.take(await clerk.lease(30_000))
        assert (attempt, attempt - 1) == (job.attempts, job.stalls)
        clerk.now += 29_999
        assert [] == await clerk.reap()
        clerk.now += 1
        assert ["a"] == [reaped.id for reaped in await clerk.reap()]


async def test_a_claim_by_hand_asks_for_the_time_it_needs(queue: Queue) -> None:
    """receive(lease=30) unless the job brings its own; extend prolongs it."""
    await queue.enqueue(1, lease=1.5)
    await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        first, second = [await anext(claims), await anext(claims)]
        assert {1500, None} == {first.lease_ms, second.lease_ms}
        await first.extend(600)
        with pytest.raises(Refused):
            await second.extend(0)


@pytest.mark.parametrize("bad", [0, -1, "30", float("nan")])
async def test_a_lease_that_would_be_over_at_once_is_refused(queue: Queue, bad: Any) -> None:
    """Nothing is delivered again on every poll."""
    with pytest.raises(Refused):
        await queue.enqueue(1, lease=bad)


async def test_what_is_handed_off_is_never_delivered_again(clerk: Clerk) -> None:
    """It has no lease: only an end, by fence or by revision, or a cancel, takes it further."""
    await clerk.put()
    run = await clerk.take(await clerk.lease(10))
    answer = await clerk.settle(run, HandOff())
    clerk.now += 10_000_000

    await clerk.lease()
    assert ([], []) == (await clerk.reap(), await clerk.claim())
    finish = clerk.storage.finish
    assert "done" == await finish("q", "a", Complete(), answer.revision, now=clerk.now)
    assert "lost" == (await clerk.settle(run, HandOff())).status


# -- movers ------------------------------------------------------------------------------------------------


async def test_only_the_holder_moves_a_job(queue: Queue) -> None:
    """Nothing goes from any state to any: a second or late mover is told that it lost."""
    await queue.enqueue(1, id="a")
    claim = await claimed(queue)
    await claim.complete("first")
    for late in (claim.fail("late"), claim.retry(), claim.release(), claim.hand_off(), claim.progress(1)):
        with pytest.raises(LeaseLost):
            await late

    ticket = queue.ticket("a", 0)
    assert "not_kept" == (await ticket.status()).state
    status = await queue.get("a")
    assert status is not None
    assert "completed" == status.state


async def test_moving_what_is_unknown_is_told(queue: Queue) -> None:
    """Each verb by id has its word for it; any text is an id, so none is malformed."""
    for id in ("unknown", "8e0f4e8c-0000-4000-8000-000000000000", "'"):
        assert "not_found" == await queue.finish(id, 1)
        assert "not_found" == await queue.cancel(id)
        assert "not_found" == await queue.amend(id, priority=1)
        assert "not_found" == await queue.retry_failed(id)
        assert not await queue.forget(id)


@pytest.mark.parametrize("state", ["waiting", "active", "completed", "failed"])
async def test_a_job_can_be_removed_in_any_state(queue: Queue, state: str) -> None:
    """forget: everything of the id is gone, and a holder finds it lost."""
    await queue.enqueue(1, id="a")
    claim = await claimed(queue) if state != "waiting" else None
    if claim and state == "completed":
        await claim.complete()
    if claim and state == "failed":
        await claim.fail("no")

    assert await queue.forget("a")
    assert await queue.get("a") is None
    if claim and state == "active":
        with pytest.raises(LeaseLost):
            await claim.complete()


async def test_an_end_may_keep_nothing(queue: Queue) -> None:
    """Done with delete: a retention of 0, said at the end or with the job."""
    await queue.enqueue(1, id="a")
    await (await claimed(queue)).complete("gone", retention=0)
    await queue.enqueue(1, id="b", retention=0)
    await (await claimed(queue)).fail("gone")

    assert (None, None) == (await queue.get("a"), await queue.get("b"))


async def test_an_amend_is_taken_whole_or_not_at_all(clerk: Clerk) -> None:
    await clerk.put(priority=1)
    await clerk.take()
    patch = JobPatch(attributes={"x": b"1"}, priority=2)

    assert "active" == await clerk.storage.amend("q", "a", patch, now=clerk.now)
    assert ({}, 1) == ((await clerk.current()).data.attributes, (await clerk.current()).data.priority)


async def test_a_late_answer_never_overwrites(clerk: Clerk) -> None:
    """The delivery that came second is the one whose word counts."""
    await clerk.put()
    late = await clerk.stall()
    second = await clerk.take()
    await clerk.settle(second, Complete(result=b"2"))

    assert "lost" == (await clerk.settle(late, Complete(result=b"1"))).status
    assert (b"2", fence_of(second)) == ((await clerk.outcome()).result, (await clerk.outcome()).fence)
