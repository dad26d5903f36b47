"""Times of runs are read under the lock: runs of an id never overlap, and no run ends before it begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import EnqueueRequest, QueueStep, Release, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, leased

Connect = Callable[[], Any]


@asynccontextmanager
async def waiting(connect: Connect, call: Awaitable[Any], lock: str) -> AsyncIterator[asyncio.Future[Any]]:
    """Start a call that waits for the row of each lease, and let it go on after the block."""
    holder = await connect()
    await holder.execute(f"SELECT 1 FROM leases FOR {lock}".encode())
    task = asyncio.ensure_future(call)
    look = await connect()
    await look.set_autocommit(True)
    waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(60):
        while not await (await look.execute(waits)).fetchall():  # noqa: ASYNC110 - the server sends no message
            await asyncio.sleep(0.005)
    # The clock of the server goes on by some ms.
    await look.execute("SELECT pg_sleep(0.02)")
    yield task
    await holder.rollback()
    await task


async def claim(storage: PostgresStorage, lease: str) -> None:
    await storage.claim("q", lease, 10)


async def serve(storage: PostgresStorage, lease: str) -> None:
    await storage.serve([QueueStep("q", limit=10)], lease)


@pytest.mark.parametrize("call", [claim, serve])
async def test_a_run_begins_after_the_end_of_the_run_before(
    storage: PostgresStorage, connect: Connect, call: Callable[..., Awaitable[None]]
) -> None:
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    assert job.run is not None
    async with waiting(connect, call(storage, await leased(storage)), "UPDATE"):
        await storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=Release())])

    ((_, released),) = (await storage.events("q")).events
    again = await running(storage)
    assert again.run is not None
    assert released.finished_at is not None
    assert released.finished_at <= again.run.claimed_at


async def test_a_run_ends_after_its_start(storage: PostgresStorage, connect: Connect) -> None:
    """A drop waits for the claims that take the lease at the same time."""
    lease = await leased(storage)
    await storage.enqueue("q", [asked("a")])
    async with waiting(connect, storage.drop(["q"], lease, 10), "KEY SHARE"):
        (job,) = (await storage.claim("q", lease, 10)).jobs

    ((_, released),) = (await storage.events("q")).events
    assert job.run is not None
    assert released.claimed_at is not None
    assert released.finished_at is not None
    assert job.run.claimed_at <= released.claimed_at <= released.finished_at


async def running(storage: PostgresStorage) -> Job:
    (slot,) = await storage.get("q", ["a"])
    assert slot.current is not None
    return slot.current


#: begin_log_step(), which both claims call after they have read the time, and another step 20 ms later.
LATER_STEP = """
ALTER FUNCTION begin_log_step() RENAME TO real_begin_log_step;
CREATE FUNCTION begin_log_step() RETURNS void LANGUAGE sql AS $$
    SELECT tick(1020);
    SELECT real_begin_log_step();
$$;
"""


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_claim_whose_lease_expires_while_it_looks_is_lost(
    opening: Callable[..., PostgresStorage], connect: Connect, limit: int | None
) -> None:
    async with opening(clock="manual") as storage:
        lease = (await storage.grant(["q"], 10, "test", now=1000)).lease
        await storage.enqueue("q", [asked("a")], now=1000)
        await storage.configure("q", SettingsPatch(max_active=limit, log_level="all"), now=1000)
        connection = await connect()
        await connection.execute(LATER_STEP)
        await connection.commit()

        answer = await storage.claim("q", lease, 10, now=1000)

        assert answer.lost
        assert () == tuple(answer.jobs)
        (counts,) = (await storage.counts(["q"], now=1020)).values()
        assert 1 == counts.waiting


@pytest.mark.parametrize("limits", [SettingsPatch(), SettingsPatch(max_active=2), SettingsPatch(per_key=1)])
async def test_a_claim_leaves_no_job_that_was_due_at_its_now(
    opening: Callable[..., PostgresStorage], connect: Connect, limits: SettingsPatch
) -> None:
    """A job of a higher priority falls due while the claim looks."""
    async with opening(clock="manual") as storage:
        lease = (await storage.grant(["q"], 1000, "test", now=1000)).lease
        later = EnqueueRequest(job=NewJob(id="b", data=JobData(payload=b"1", priority=1), delay=10))
        await storage.enqueue("q", [asked("a"), later], now=1000)
        await storage.configure("q", SettingsPatch(log_level="all"), now=1000)
        await storage.configure("q", limits, now=1000)
        connection = await connect()
        await connection.execute(LATER_STEP)
        await connection.commit()

        answer = await storage.claim("q", lease, 10, now=1000)

        assert ["a"] == [job.id for job in answer.jobs]
        assert [1020] == [job.run.claimed_at for job in answer.jobs if job.run is not None]
        assert (1000, 1010) == (answer.now, answer.next_due)


async def test_a_job_that_a_transaction_held_during_a_claim_is_not_forgotten(
    opening: Callable[..., PostgresStorage], connect: Connect
) -> None:
    """The rollback tells nobody. A wait that begins with the token of the claim finds the job."""
    async with opening() as storage:
        await storage.enqueue("q", [asked("a")])
        holder = await connect()
        await holder.execute("SELECT id FROM live WHERE id = 'a' FOR UPDATE")
        lease = await leased(storage)
        passed = await storage.claim("q", lease, 10)
        await holder.rollback()
        async with asyncio.timeout(60):
            await storage.wait(["q"], since={"q": passed.token}, timeout=600)

        assert () == tuple(passed.jobs)
        assert ["a"] == [job.id for job in (await storage.claim("q", lease, 10)).jobs]
