"""`max_waiting` on Postgres: transactions of callers, isolation levels, and what a count reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from psycopg import IsolationLevel

from dibs.errors import StorageError
from dibs.model.request_columns import RequestColumns, make_member
from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed

Connect = Callable[[], Any]
BATCH = RequestColumns(
    ids=["a", "b", "c"], payloads=[b"1"] * 3, members=[make_member(id * 12, 0) for id in (b"a", b"b", b"c")]
)


async def statuses(enqueue: Any) -> list[str]:
    return [answer.status for answer in await enqueue]


async def test_a_joined_transaction_counts_its_own_jobs_and_holds_the_bound(
    storage: PostgresStorage, connect: Connect
) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=2))
    mine = await connect()
    joined = storage.in_transaction(mine)
    assert ["queued"] == await statuses(joined.enqueue("q", [asked("a")]))
    assert ["queued", "full"] == await statuses(joined.enqueue("q", [asked("b"), asked("c")]))
    other = asyncio.create_task(statuses(storage.enqueue("q", [asked("d")])))
    unbounded = await statuses(storage.enqueue("other", [asked("d")]))

    assert ["queued"] == unbounded
    assert not other.done()
    await mine.commit()
    assert ["full"] == await other


async def test_a_rollback_gives_the_places_back(storage: PostgresStorage, connect: Connect) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=1))
    mine = await connect()
    await storage.in_transaction(mine).enqueue("q", [asked("a")])
    other = asyncio.create_task(statuses(storage.enqueue("q", [asked("b")])))
    await mine.rollback()

    assert ["queued"] == await other


async def test_a_claim_does_not_wait_for_a_joined_enqueue(storage: PostgresStorage, connect: Connect) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=2, per_key=1))
    await storage.enqueue("q", [asked("a")])
    mine = await connect()
    await storage.in_transaction(mine).enqueue("q", [asked("b")])

    assert ["a"] == [job.id for job in await claimed(storage)]
    await mine.commit()


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
async def test_a_snapshot_cannot_count(
    storage: PostgresStorage, connect: Connect, level: IsolationLevel
) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=5))
    mine = await connect()
    await mine.set_isolation_level(level)
    with pytest.raises(StorageError, match=r"nothing was changed: .*max_waiting.*; use READ COMMITTED"):
        await storage.in_transaction(mine).enqueue("q", [asked("a")])
    await mine.rollback()
    await storage.configure("q", SettingsPatch(max_waiting=None))

    assert ["queued"] == await statuses(storage.in_transaction(mine).enqueue("q", [asked("a")]))


async def test_a_stopped_enqueue_wakes_no_worker(storage: PostgresStorage) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=1))
    await storage.enqueue("q", [asked("a", delay=3_600_000)])
    since = (await storage.wait(["q"], timeout=0)).since
    await storage.enqueue("q", [asked("b")])

    assert not (await storage.wait(["q"], since=since, timeout=0.3)).woken


async def test_a_batch_that_a_bound_refuses_changes_nothing(storage: PostgresStorage) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=2))
    refused = await storage.enqueue_batch("q", "run/0", 1, BATCH)
    after = (await storage.counts(["q"]))["q"].waiting
    await storage.configure("q", SettingsPatch(when_full="drop_new"))
    dropped = await storage.enqueue_batch("q", "run/0", 1, BATCH)
    again = await storage.enqueue_batch("q", "run/0", 1, BATCH)

    assert ["queued", "queued", "full"] == list(refused or ())
    assert 0 == after
    assert ["queued", "queued", "dropped"] == list(dropped or ())
    assert again is None
    assert 2 == (await storage.counts(["q"]))["q"].waiting
