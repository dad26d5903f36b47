"""The clock of a rehearsal: due times, expiry, periodic tasks, and inline runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dibs import JobFailed
from dibs.maintenance.reap import reap
from dibs.testing import Rehearsal, using
from tests.testing import service
from tests.testing.service import app, runs_done

#: The start of tests that move the clock. From the real time, a tick of `refresh` could be due at any moment.
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


# -- time ----------------------------------------------------------------------------------------------


async def test_a_delay_is_over_when_time_has_passed() -> None:
    async with using(app, start=NOON) as rehearsal:
        await service.plain.options(delay=60).enqueue(1)
        await rehearsal.advance(59.999)
        early = (await rehearsal.run_due()).total("completed")
        await rehearsal.advance(0.001)
        due = (await rehearsal.run_due()).total("completed")

        assert (0, 1) == (early, due)
        assert NOON + timedelta(minutes=1) == rehearsal.now


async def test_advance_wakes_a_wait_in_the_storage() -> None:
    async with using(app, start=NOON) as rehearsal:
        await service.plain.options(delay=60).enqueue(1)
        token = (await app.storage.claim("plain", await granted(), 1)).token
        wait = asyncio.create_task(app.storage.wait(["plain"], since={"plain": token}, timeout=30))
        await asyncio.sleep(0)
        await rehearsal.advance(60)

        assert (await asyncio.wait_for(wait, 5)).woken


async def granted() -> str:
    return (await app.storage.grant(["plain"], 1000, "me")).lease


async def test_calls_of_the_storage_get_the_manual_time() -> None:
    async with using(app, start=NOON):
        claim = await app.storage.claim("plain", await granted(), 1)

        assert NOON.timestamp() * 1000 == claim.now
        assert [] == await reap(app.storage, "plain")


async def test_a_periodic_task_runs_at_its_times() -> None:
    async with using(app, start=NOON) as rehearsal:
        for _ in range(3):
            await rehearsal.advance(3600)
            await rehearsal.run_due()

        assert ["refresh"] * 3 == runs_done()


async def test_a_periodic_task_does_not_keep_a_queue_from_being_empty() -> None:
    async with using(app, start=NOON) as rehearsal:
        await service.stubborn.enqueue()
        report = await rehearsal.run_until_empty()

        # The backoffs take 1 hour and 57 minutes, so one tick becomes due in between.
        assert (4, 1) == (report.queue("stubborn").claimed, report.queue("refresh").claimed)
        assert 1 == (await service.refresh.queue.counts()).scheduled


async def test_inline_a_periodic_task_runs_while_time_passes() -> None:
    async with using(app, start=NOON, inline=True) as rehearsal:
        await rehearsal.advance(3 * 3600)

        assert ["refresh"] * 3 == runs_done()


# -- inline --------------------------------------------------------------------------------------------


async def test_an_inline_enqueue_returns_after_the_run() -> None:
    async with using(app, inline=True):
        ticket = await service.chain.enqueue(2)

        assert ["chain 2", "chain 1", "chain 0"] == runs_done()
        assert "completed" == (await ticket.status()).state
        assert "5" == await service.plain.options(wait=0).enqueue_and_wait(5)


async def test_inline_a_batch_and_a_handler_that_waits_run_as_well() -> None:
    async with using(app, inline=True):
        tickets = await service.asks.enqueue_many(service.asks.bind(number) for number in range(3))

        assert ["answer 0", "answer 1", "answer 2"] == [await ticket.result(wait=0) for ticket in tickets]


async def test_inline_concurrent_enqueues_have_each_run() -> None:
    async with using(app, inline=True):
        states = await asyncio.gather(*map(state_on_return, range(20)))

    assert ["completed"] * 20 == states


async def state_on_return(number: int) -> str:
    """Enqueue inline and return the state. A run that a concurrent enqueue has started is awaited too."""
    return (await (await service.asks.enqueue(number)).status()).state


async def test_inline_jobs_run_at_their_time_while_it_passes() -> None:
    async with using(app, start=NOON, inline=True) as rehearsal:
        await service.endless.enqueue()
        ticket = await service.plain.options(delay=10).enqueue(1)
        await rehearsal.advance(9.5)
        early = (await ticket.status()).state
        await rehearsal.advance(0.5)

        assert ("waiting", "completed") == (early, (await ticket.status()).state)
        assert NOON + timedelta(seconds=10) == rehearsal.now


async def test_a_handler_cannot_run_the_rehearsal() -> None:
    async with using(app) as rehearsal:
        holder.append(rehearsal)
        ticket = await impossible.enqueue()
        await rehearsal.run_due()

        with pytest.raises(JobFailed, match="a handler cannot run the rehearsal"):
            await ticket.result(wait=0)


holder: list[Rehearsal] = []


@app.task(queue="impossible", max_retries=0)
async def impossible() -> None:
    await holder.pop().run_due()
