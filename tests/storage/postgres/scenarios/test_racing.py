"""Concurrent calls on one queue, some of which wait for the locks of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, Reject
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.network.errors import CONFLICTS
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.network.test_errors import blocked

Connect = Callable[[], Any]


async def test_an_enqueue_waits_for_one_that_is_rolled_back(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    await storage.in_transaction(mine).enqueue("q", [asked("a", b"mine")])
    theirs = asyncio.create_task(
        storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"), on_conflict=Reject())])
    )
    await blocked(await connect())
    await mine.rollback()

    assert "queued" == (await theirs)[0].status
    assert [b""] == [job.data.payload for job in await claimed(storage)]


async def test_batches_in_opposite_order_never_wait_for_each_other(storage: PostgresStorage) -> None:
    ids = [f"{n:02}" for n in range(50)]
    await storage.enqueue("q", [asked(id) for id in ids[::2]])
    batches = [ids, ids[::-1]] * 8
    answers = await asyncio.gather(*(storage.enqueue("q", [asked(id) for id in batch]) for batch in batches))

    assert 50 * 16 == sum(len(batch) for batch in answers)
    assert CONFLICTS  # the verb repeats a call that ends with one of these errors


async def test_a_claim_beside_a_reap_loses_nothing(
    opening: Callable[..., PostgresStorage], connect: Connect
) -> None:
    """A claim locks its lease until its commit. Until then a reap skips it, and then takes the job."""
    async with opening(clock="manual") as storage:
        await storage.enqueue("q", [asked("a")], now=1000)
        lease = (await storage.grant(["q"], 150, "test", now=1000)).lease
        mine = await connect()
        await mine.execute("SELECT count(*) FROM claim('{q}', '{10}', %s::uuid, 1100)", [lease])

        assert [] == await storage.reap("q", 10, now=1200)
        await mine.commit()
        reaped = await storage.reap("q", 10, now=1200)
        assert [("a", "stalled")] == [(one.id, one.kind) for one in reaped]


async def test_events_never_appear_behind_a_reader(storage: PostgresStorage, connect: Connect) -> None:
    """A writer draws its number in the log and commits late. Before that, another one commits."""
    await storage.enqueue("q", [asked("slow"), asked("fast")])
    jobs = {job.id: job for job in await claimed(storage)}
    mine = await connect()
    await storage.in_transaction(mine).settle("q", [done(jobs["slow"])])
    await storage.settle("q", [done(jobs["fast"])])

    first = await storage.events("q")
    assert () == first.events
    await mine.commit()
    second = await storage.events("q", after=first.offset or None)
    assert ["slow", "fast"] == [event.id for _, event in second.events]


async def test_a_long_transaction_of_somebody_else_holds_no_event_back(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    await mine.execute("CREATE TABLE unrelated AS SELECT pg_current_xact_id()")
    await storage.enqueue("q", [asked("a")])
    await storage.settle("q", [done(job) for job in await claimed(storage)])

    assert ["a"] == [event.id for _, event in (await storage.events("q")).events]


async def test_time_never_steps_back(storage: PostgresStorage, connect: Connect) -> None:
    mine = await connect()
    await mine.execute("SELECT setval('seen', (extract(epoch FROM now()) * 1000 + 60000)::bigint)")
    await mine.commit()
    times = [(await storage.grant(["q"], 1000, "test")).now for _ in range(5)]

    assert times == sorted(times)
    assert times[0] > time.time() * 1000 + 50_000
