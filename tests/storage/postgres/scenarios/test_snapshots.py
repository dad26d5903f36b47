"""Transactions of the caller that have a snapshot: REPEATABLE READ and SERIALIZABLE.

A verb either answers as it does under READ COMMITTED, or raises a serialization failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import IsolationLevel, errors

from dibs.model.job import Error
from dibs.model.requests import EnqueueRequest, Fail, Reject, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.network.test_errors import blocked
from tests.storage.postgres.retries import retried

Connect = Callable[[], Any]


def rejecting(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=asked(id).job, on_conflict=Reject())


@pytest.fixture(params=[IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
async def mine(request: pytest.FixtureRequest, connect: Connect) -> Any:
    """A connection whose transactions read a snapshot: REPEATABLE READ or SERIALIZABLE."""
    connection = await connect()
    await connection.set_isolation_level(request.param)
    return connection


async def test_an_old_snapshot_enqueues_no_job_that_reject_keeps_out(
    storage: PostgresStorage, mine: Any
) -> None:
    calls = 0

    async def work() -> Any:
        nonlocal calls
        calls += 1
        await mine.execute("SELECT 1 FROM queues")
        if calls == 1:
            await storage.enqueue("q", [asked("a")])
            await storage.settle("q", [done(job) for job in await claimed(storage)])
        return await storage.in_transaction(mine).enqueue("q", [rejecting("a")])

    (answer,) = await retried(mine, work)

    assert ("completed", 2) == (answer.status, calls)
    assert 0 == (await storage.counts(["q"]))["q"].waiting


@pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
async def test_an_old_snapshot_gives_no_number_below_an_ended_run(
    storage: PostgresStorage, mine: Any, ids: list[str]
) -> None:
    """The id ended after the snapshot of the transaction that enqueues it, alone or in a batch."""
    await storage.enqueue("q", [asked("z")])
    await mine.execute("SELECT 1 FROM queues")
    await storage.enqueue("q", [asked("a")])
    await storage.settle("q", [done(job) for job in await claimed(storage)])
    with pytest.raises(errors.SerializationFailure):
        await storage.in_transaction(mine).enqueue("q", [asked(id) for id in ids])
    await mine.rollback()

    answers = await storage.in_transaction(mine).enqueue("q", [asked(id) for id in ids])
    await mine.commit()
    assert {"queued"} == {answer.status for answer in answers}


async def test_an_old_snapshot_sees_an_outcome_that_was_replaced(storage: PostgresStorage, mine: Any) -> None:
    await storage.enqueue("q", [asked("a")])
    await storage.settle("q", [done(job) for job in await claimed(storage)])
    await mine.execute("SELECT 1 FROM queues")
    await storage.enqueue("q", [asked("a")])

    with pytest.raises(errors.SerializationFailure):
        await storage.in_transaction(mine).enqueue("q", [rejecting("a")])


async def test_an_old_snapshot_of_a_busy_id_fails_and_a_retry_updates_it(
    storage: PostgresStorage, mine: Any
) -> None:
    await storage.enqueue("q", [asked("a")])
    calls = 0

    async def work() -> Any:
        nonlocal calls
        calls += 1
        await mine.execute("SELECT 1 FROM queues")
        if calls == 1:
            await claimed(storage)
        return await storage.in_transaction(mine).enqueue("q", [asked("a")])

    (answer,) = await retried(mine, work)
    assert ("blocked", 2) == (answer.status, calls)


@pytest.mark.parametrize("new", [False, True])
async def test_a_lease_under_an_old_snapshot_is_not_told_lost(
    storage: PostgresStorage, mine: Any, *, new: bool
) -> None:
    """The settle raises a serialization failure. With `new`, the queue is newer than the snapshot, too."""
    if not new:
        await storage.enqueue("q", [asked("z")])
        await claimed(storage)
    await mine.execute("SELECT 1 FROM queues")
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    with pytest.raises(errors.SerializationFailure):
        await storage.in_transaction(mine).settle("q", [done(job)])
    await mine.rollback()

    (answer,) = await storage.in_transaction(mine).settle("q", [done(job)])
    await mine.commit()
    assert "done" == answer.status


async def test_a_snapshot_keeps_every_answer_of_a_quiet_queue(storage: PostgresStorage, mine: Any) -> None:
    for number in range(3):
        enqueue = storage.in_transaction(mine).enqueue
        (a,) = await enqueue("q", [asked("a")])
        (b, c) = await enqueue("q", [asked("b"), rejecting("c")])
        await mine.commit()
        jobs = await claimed(storage)
        ends = await storage.in_transaction(mine).settle("q", [done(job) for job in jobs])
        await mine.commit()

        third = "completed" if number else "queued"
        assert ("queued", "queued", third) == (a.status, b.status, c.status)
        assert {"done"} == {end.status for end in ends}


async def test_two_enqueues_of_one_id_in_snapshots_are_one_after_the_other(
    storage: PostgresStorage, mine: Any, connect: Connect
) -> None:
    theirs = await connect()
    await theirs.set_isolation_level(IsolationLevel.REPEATABLE_READ)
    await storage.enqueue("q", [asked("z")])
    for connection in (mine, theirs):
        await connection.execute("SELECT 1 FROM queues")
    await storage.in_transaction(theirs).enqueue("q", [asked("a", b"theirs")])
    waiting = asyncio.create_task(storage.in_transaction(mine).enqueue("q", [asked("a", b"mine")]))
    await blocked(await connect())
    await theirs.commit()

    with pytest.raises(errors.SerializationFailure):
        await waiting


async def test_a_conflict_has_a_note_that_names_the_call(
    storage: PostgresStorage, mine: Any, connect: Connect
) -> None:
    await storage.enqueue("q", [asked("a")])
    await mine.execute("SELECT 1 FROM queues")
    await claimed(storage)
    with pytest.raises(errors.SerializationFailure) as caught:
        await storage.in_transaction(mine).enqueue("q", [asked("a")])

    assert "40001" == caught.value.sqlstate
    assert any("repeat the whole transaction" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("handled", [True, False])
async def test_a_failure_in_an_old_snapshot_obeys_the_latest_setting(
    storage: PostgresStorage, mine: Any, *, handled: bool
) -> None:
    await storage.configure("q", SettingsPatch(fail_handler=not handled))
    await storage.configure("q!fail", SettingsPatch())
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    await mine.execute("SELECT 1 FROM queues")
    await storage.configure("q", SettingsPatch(fail_handler=handled))
    assert job.run is not None
    failed = Settlement(id="a", fence=job.run.fence, action=Fail(error=Error(type="E")))

    (answer,) = await storage.in_transaction(mine).settle("q", [failed])
    await mine.commit()

    assert "done" == answer.status
    assert handled == (await storage.counts(["q!fail"]))["q!fail"].waiting
