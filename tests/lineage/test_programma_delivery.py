"""Programma: claims, redelivery and changes of state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import Dibs, LeaseLost, Queue, Refused
from dibs.model.overrides import Overrides
from dibs.model.requests import Complete, HandOff, JobPatch
from tests.lineage.protocol_client import ProtocolClient, fence_of
from tests.lineage.scripted_handlers import claim_one

# -- the claim ---------------------------------------------------------------------------------------------


async def test_claims_at_the_same_time_never_overlap(protocol: ProtocolClient) -> None:
    """Four concurrent claims of 20 get 50 different jobs."""
    for number in range(50):
        await protocol.enqueue(f"{number:02}")
    leases = [await protocol.new_lease() for _ in range(4)]
    taken = await asyncio.gather(*(protocol.claim(20, lease) for lease in leases))

    ids = [job.id for jobs in taken for job in jobs]
    assert (50, 50) == (len(ids), len(set(ids)))


async def test_a_claim_returns_what_it_took_in_order(protocol: ProtocolClient) -> None:
    """Jobs with equal times are claimed in the order of their enqueues, not by id."""
    ids = [f"{(number * 7) % 20:02}" for number in range(20)]
    for id in ids:
        await protocol.enqueue(id)

    assert ids == [job.id for job in await protocol.claim()]


async def test_a_job_that_is_not_settled_in_time_is_delivered_again(protocol: ProtocolClient) -> None:
    """Delivery is at least once: a job whose lease has expired is claimed again. Attempts are counted."""
    await protocol.enqueue(overrides=Overrides(lease=30_000))
    for attempt in (1, 2, 3):
        job = await protocol.claim_one(await protocol.new_lease(30_000))
        assert (attempt, attempt - 1) == (job.attempts, job.stalls)
        protocol.now += 29_999
        assert [] == await protocol.reap()
        protocol.now += 1
        assert ["a"] == [reaped.id for reaped in await protocol.reap()]


async def test_a_claim_by_hand_asks_for_the_time_it_needs(app: Dibs, queue: Queue) -> None:
    """receive(lease=...) sets the lease, unless the job has its own; extend() prolongs it."""
    await queue.enqueue(1, lease=1.5)
    await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        first, second = [await anext(claims), await anext(claims)]
        assert {1500, None} == {first.lease_ms, second.lease_ms}
        await first.extend(600)
        # A renewal never shortens a lease, so this one shows its end.
        renewed = (await app.storage.renew([queue.name], first._lease, 1))[queue.name]
        assert 590_000 <= renewed.expires_at - renewed.now <= 600_000
        with pytest.raises(Refused):
            await second.extend(0)


@pytest.mark.parametrize("bad", [0, -1, "30", float("nan")])
async def test_a_lease_that_would_be_over_at_once_is_refused(queue: Queue, bad: Any) -> None:
    """A lease without a positive length is refused."""
    with pytest.raises(Refused):
        await queue.enqueue(1, lease=bad)


async def test_what_is_handed_off_is_never_delivered_again(protocol: ProtocolClient) -> None:
    """A handed-off job has no lease. Only a settlement or a cancel changes its state."""
    await protocol.enqueue()
    run = await protocol.claim_one(await protocol.new_lease(10))
    answer = await protocol.settle(run, HandOff())
    protocol.now += 10_000_000

    await protocol.new_lease()
    assert ([], []) == (await protocol.reap(), await protocol.claim())
    finish = protocol.storage.finish
    assert "done" == await finish("q", "a", Complete(), answer.revision, now=protocol.now)
    assert "lost" == (await protocol.settle(run, HandOff())).status


# -- changes of state --------------------------------------------------------------------------------------


async def test_only_the_holder_moves_a_job(queue: Queue) -> None:
    """After the first settlement each other action of the claim raises LeaseLost."""
    await queue.enqueue(1, id="a")
    claim = await claim_one(queue)
    await claim.complete("first")
    for late in (claim.fail("late"), claim.retry(), claim.release(), claim.hand_off(), claim.progress(1)):
        with pytest.raises(LeaseLost):
            await late

    ticket = queue.ticket("a", 1)
    assert "not_kept" == (await ticket.status()).state
    status = await queue.get("a")
    assert status is not None
    assert "completed" == status.state


async def test_moving_what_is_unknown_is_told(queue: Queue) -> None:
    """Each verb replies not_found for an unknown id, and accepts any text as an id."""
    for id in ("unknown", "8e0f4e8c-0000-4000-8000-000000000000", "'"):
        assert "not_found" == await queue.finish(id, 1)
        assert "not_found" == await queue.cancel(id)
        assert "not_found" == await queue.amend(id, priority=1)
        assert "not_found" == await queue.retry_failed(id)
        assert not await queue.forget(id)


@pytest.mark.parametrize("state", ["waiting", "active", "completed", "failed"])
async def test_a_job_can_be_removed_in_any_state(queue: Queue, state: str) -> None:
    """forget removes all records of the id, and the holder of a run gets LeaseLost."""
    await queue.enqueue(1, id="a")
    claim = await claim_one(queue) if state != "waiting" else None
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
    """A retention of 0, of the job or of its settlement, keeps no outcome."""
    await queue.enqueue(1, id="a")
    await (await claim_one(queue)).complete("gone", retention=0)
    await queue.enqueue(1, id="b", retention=0)
    await (await claim_one(queue)).fail("gone")

    assert (None, None) == (await queue.get("a"), await queue.get("b"))


async def test_an_amend_is_taken_whole_or_not_at_all(protocol: ProtocolClient) -> None:
    await protocol.enqueue(priority=1)
    await protocol.claim_one()
    patch = JobPatch(attributes={"x": b"1"}, priority=2)

    assert "active" == await protocol.storage.amend("q", "a", patch, now=protocol.now)
    assert ({}, 1) == ((await protocol.current()).data.attributes, (await protocol.current()).data.priority)


async def test_a_late_answer_never_overwrites(protocol: ProtocolClient) -> None:
    """The result of the second run is kept, and the late result of the first is lost."""
    await protocol.enqueue()
    late = await protocol.stall()
    second = await protocol.claim_one()
    await protocol.settle(second, Complete(result=b"2"))

    assert "lost" == (await protocol.settle(late, Complete(result=b"1"))).status
    assert (b"2", fence_of(second)) == ((await protocol.outcome()).result, (await protocol.outcome()).fence)
