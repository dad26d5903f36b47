"""Programma: claims, redelivery and changes of state."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import Dibs, LeaseLost, Queue, Refused
from tests.lineage.scripted_handlers import claim_one

# -- the claim ---------------------------------------------------------------------------------------------


async def test_a_claim_by_hand_asks_for_the_time_it_needs(app: Dibs, queue: Queue) -> None:
    """receive(lease=...) sets the lease, unless the job has its own; extend() prolongs it."""
    await queue.enqueue(1, lease=1.5)
    await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        first, second = [await anext(claims), await anext(claims)]
        assert {1500, None} == {first.lease_ms, second.lease_ms}
        # A renewal never shortens a lease, so this one shows its end: 30 s from the grant, by default.
        default = (await app.storage.renew([queue.name], first._lease, 1))[queue.name]
        assert 1_500 < default.expires_at - default.now <= 30_000
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
