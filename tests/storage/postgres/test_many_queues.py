"""The verb serve: the settlements and claims of several queues in one statement and one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from dibs.errors import StorageBusy, StorageDamaged
from dibs.model.requests import QueueStep, SettingsPatch
from dibs.model.results import ClaimResult
from dibs.storage.postgres import PostgresStorage
from tests.storage.exchange import counted
from tests.storage.postgres.jobs import asked, done

QUEUES = ("b", "a", "c")


async def leased(storage: PostgresStorage, queues: Sequence[str] = QUEUES) -> str:
    return (await storage.grant(queues, 60_000, "test")).lease


def ids(claim: ClaimResult) -> list[str]:
    return [job.id for job in claim.jobs]


async def test_it_is_one_statement(storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [f"q{n}" for n in range(200)]
    lease = await leased(storage, queues)
    with counted(monkeypatch, psycopg.AsyncCursor, "execute") as calls:
        await storage.serve([QueueStep(queue, limit=1) for queue in queues], lease)

    assert 1 == len(calls)


async def test_the_functions_of_settle_and_claim_run_only_where_they_must(
    storage: PostgresStorage, connect: Callable[[], Any], schema: str
) -> None:
    """A settle without settlements would wake waits. A paused queue is left to claim_limited()."""
    lease = await leased(storage)
    for queue in QUEUES:
        await storage.configure(queue, SettingsPatch(paused=True))
    connection = await connect()
    await connection.execute("SET track_functions = 'pl'")
    query = storage._server.queries["serve"]
    params = {
        "queues": ["a", "b", "c"], "limits": [1, 0, 1], "lasts": [0, 0, 0],
        "plains": [False] * 3, "ids": [], "fences": [], "kinds": None, "results": None,
        "details": None, "spots": None, "lease": lease, "now": None,
    }  # fmt: skip
    await connection.execute(query, params)
    cursor = await connection.execute(
        "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE schemaname = %s", [schema]
    )
    calls = dict(await cursor.fetchall())

    assert 2 == calls.get("claim_limited")
    assert {"settle_rest", "complete_all", "notify_waits"}.isdisjoint(calls)


async def test_a_lock_of_another_transaction_ends_it_without_a_change(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    lease = await leased(storage)
    for queue in QUEUES:
        await storage.enqueue(queue, [asked("x"), asked("y")])
    claimed = await storage.serve([QueueStep(queue, limit=1) for queue in QUEUES], lease)
    steps = [
        QueueStep(q, [done(job) for job in r.claim.jobs], 1) for q, r in zip(QUEUES, claimed, strict=True)
    ]
    connection = await connect()
    await connection.execute(
        "SELECT 1 FROM live JOIN queues USING (q) WHERE name = 'c' AND id = 'x' FOR UPDATE OF live"
    )

    with pytest.raises(StorageBusy, match="nothing was written"):
        await storage.serve(steps, lease)

    counts = await storage.counts(QUEUES)
    assert [(1, 1, 0)] * 3 == [(c.waiting, c.active, c.completed) for c in counts.values()]


async def test_a_damaged_job_is_named_with_its_queue(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    lease = await leased(storage)
    for queue in QUEUES:
        await storage.enqueue(queue, [asked("x")])
    connection = await connect()
    await connection.execute(
        "UPDATE live SET retention = '7' WHERE q = (SELECT q FROM queues WHERE name = 'c')"
    )
    await connection.commit()

    with pytest.raises(StorageDamaged, match="'x' in queue 'c'"):
        await storage.serve([QueueStep(queue, limit=1) for queue in QUEUES], lease)
