"""Leases that jobs ask for, in a receiver beside other jobs."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, Queue


@pytest.mark.long
async def test_a_short_lease_of_a_job_never_shortens_that_of_its_neighbours(queue: Queue) -> None:
    """Contract 3, Leases: the holder renews for the longest of its own length and those of the jobs."""
    await queue.enqueue_many([queue.bind(1, lease=0.05), queue.bind(2)])
    async with queue.receive(max_jobs=2, lease=1.5, wait=0) as claims:
        held = [await anext(claims), await anext(claims)]
        # Real time on purpose: the receiver's lease would have ended without its renewals.
        await asyncio.sleep(2.2)

        assert [False, False] == [claim.lost for claim in held]
        for claim in held:
            await claim.complete()


async def test_a_lease_of_half_seconds_is_neither_rounded_nor_that_of_the_receiver(
    queue: Queue, app: Dibs
) -> None:
    """Contract 3, Leases. Programma made 2 s of 1.5, and 30 s of none."""
    await queue.enqueue(1, lease=1.5)
    async with queue.receive(lease=0.2, wait=0) as claims:
        claim = await anext(claims)
        [slot] = await app.storage.get("q", [claim.id])
        # A renewal never shortens a lease, so this one shows its end.
        renewed = (await app.storage.renew(["q"], claim._lease, 1))["q"]
        await claim.complete()

    assert slot.current is not None
    assert slot.current.run is not None
    assert 1500 == claim.lease_ms
    assert renewed.expires_at >= slot.current.run.claimed_at + 1500


async def test_a_longer_lease_of_a_job_counts_from_its_claim(queue: Queue, app: Dibs) -> None:
    """Contract 3, Leases: it does not begin with the first heartbeat."""
    await queue.enqueue(1, lease=3600)
    async with queue.receive(lease=0.2, wait=0) as claims:
        claim = await anext(claims)
        assert claims._heartbeat is not None
        claims._heartbeat.cancel()
        later = (await app.storage.grant(["q"], 200, "later")).lease
        while not (await app.storage.claim("q", later, 1)).lost:  # noqa: ASYNC110 - only the clock ends a lease
            await asyncio.sleep(0.02)

        assert [] == list(await app.storage.reap("q", 10))
        await claim.complete()
