"""The time of a run under limits on Postgres: a claim that waited begins after the end that made room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import done, leased

Connect = Callable[[], Any]


async def enqueue_keyed(storage: PostgresStorage, id: str) -> None:
    job = NewJob(id=id, data=JobData(payload=b"1", key="k"))
    await storage.enqueue("q", [EnqueueRequest(job=job)])


async def wait_until_blocked(connection: Any) -> None:
    """Wait until a statement of another connection waits for a lock."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(30):
        while not (await (await connection.execute(query)).fetchone())[0]:  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.01)


async def test_a_claim_that_waited_begins_after_the_end_that_made_room(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.configure("q", SettingsPatch(per_key=1))
    lease = await leased(storage)
    await enqueue_keyed(storage, "a")
    (first,) = (await storage.claim("q", lease, 10)).jobs
    await enqueue_keyed(storage, "b")
    # The claim reads the time, and then waits for the lock on this row.
    blocker = await connect()
    await blocker.execute("INSERT INTO freed VALUES (1, 'other')")
    await blocker.commit()
    await blocker.execute("SELECT FROM freed FOR UPDATE")

    claim = asyncio.create_task(storage.claim("q", lease, 10))
    await wait_until_blocked(blocker)
    await asyncio.sleep(0.05)
    await storage.settle("q", [done(first)])
    await blocker.commit()

    (second,) = (await claim).jobs
    (slot,) = await storage.get("q", ["a"])
    assert slot.outcome is not None
    assert second.run is not None
    assert slot.outcome.ended_at <= second.run.claimed_at
