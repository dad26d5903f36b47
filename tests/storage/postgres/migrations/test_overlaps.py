"""Calls on one id that overlap, each stopped in the middle of its function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dibs.model.job import Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import Complete, EnqueueRequest, FollowUp, Reject, Settlement
from dibs.model.results import ExportRecord
from dibs.storage.postgres import PostgresStorage

COUNT_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
JOB = Job(id="a", data=JobData(), run_at=1, enqueued_at=1, seq=7, first=7, revision=7)
OUTCOME = Outcome(kind="completed", fence=0, first=7, revision=7, ended_at=1, expires_at=None)


async def until_waiting(connection: Any, calls: int) -> None:
    """Return once this number of calls wait for a lock."""
    waiting = 0
    while waiting < calls:
        [(waiting,)] = await (await connection.execute(COUNT_WAITING)).fetchall()


async def test_of_two_imports_of_an_id_one_finds_that_it_exists(
    storage: PostgresStorage, opening: Callable[..., PostgresStorage], connect: Callable[[], Any]
) -> None:
    """One record is a waiting job, the other an outcome: they are rows of two tables. A lock on the table of
    outcomes stops both imports after their first look at the id.
    """
    blocker = await connect()
    slots = (Slot(current=JOB), Slot(outcome=OUTCOME))
    # The queue must exist, because the first use of a queue inserts it, for which the second would wait.
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="other"))])
    async with opening() as other:
        await blocker.execute("LOCK TABLE ended IN EXCLUSIVE MODE")
        imports = [
            asyncio.ensure_future(each.import_("q", [ExportRecord(id="a", slot=slot)]))
            for each, slot in zip((storage, other), slots, strict=True)
        ]
        await until_waiting(blocker, 2)
        await blocker.commit()
        answers = [answer for answered in await asyncio.gather(*imports) for answer in answered]

    assert ["exists", "imported"] == sorted(answers)


async def test_a_reject_beside_an_end_finds_the_follow_up_of_its_id(
    storage: PostgresStorage, opening: Callable[..., PostgresStorage], connect: Callable[[], Any]
) -> None:
    """The enqueue waits for the row of the run; the end deletes it, and the follow-up inserts another."""
    blocker = await connect()
    reject = EnqueueRequest(job=NewJob(id="a"), on_conflict=Reject(failed=True), request_key="k")
    lease = (await storage.grant(["q"], 60_000, "ann")).lease
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
    [job] = (await storage.claim("q", lease, 1)).jobs
    assert job.run is not None
    end = Complete(then=(FollowUp(queue="q", job=NewJob(id="a")),))
    async with opening() as other:
        await blocker.execute("LOCK TABLE events IN EXCLUSIVE MODE")
        settled = asyncio.ensure_future(
            storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=end)])
        )
        await until_waiting(blocker, 1)
        enqueued = asyncio.ensure_future(other.enqueue("q", [reject]))
        await until_waiting(blocker, 2)
        await blocker.commit()
        await settled
        [answer] = await enqueued

    assert "duplicate" == answer.status
