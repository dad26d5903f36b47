"""The counts of a queue are those of one moment, even if other calls commit while they are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, leased

Connect = Callable[[], Any]

#: A count of scheduled jobs that waits until the test has released the advisory lock 7.
SLOW = """
CREATE OR REPLACE FUNCTION count_scheduled(qu queues, now_ms bigint, most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$ BEGIN PERFORM pg_advisory_lock_shared(7); RETURN 0; END $$
"""
WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted"


async def test_a_job_that_moves_while_it_is_counted_is_counted_once(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a")])
    lease = await leased(storage)
    beside = await connect()
    await beside.execute(SLOW)
    await beside.commit()
    await beside.execute("SELECT pg_advisory_lock(7)")
    counting = asyncio.ensure_future(storage.counts(["q"]))
    async with asyncio.timeout(60):
        while not (await beside.execute(WAITS)).rowcount:  # noqa: ASYNC110 - the server sends no message about it
            await asyncio.sleep(0.01)
    claim = await storage.claim("q", lease, 1)
    await beside.execute("SELECT pg_advisory_unlock(7)")
    counted = (await counting)["q"]

    assert 1 == len(claim.jobs)
    assert (1, 0) == (counted.waiting, counted.active)
