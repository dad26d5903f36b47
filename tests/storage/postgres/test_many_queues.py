"""The verb serve: the settlements and claims of several queues in one statement and one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from dibs.errors import Refused, StorageBusy, StorageDamaged
from dibs.model.job import Error, Job
from dibs.model.requests import Complete, Fail, QueueStep, SettingsPatch, SettleAction, Settlement
from dibs.model.results import ClaimResult
from dibs.storage.postgres import PostgresStorage
from tests.storage.exchange import counted
from tests.storage.postgres.jobs import asked, done

QUEUES = ("b", "a", "c")


async def leased(storage: PostgresStorage, queues: Sequence[str] = QUEUES) -> str:
    return (await storage.grant(queues, 60_000, "test")).lease


def settlement(job: Job, action: SettleAction) -> Settlement:
    assert job.run is not None
    return Settlement(id=job.id, fence=job.run.fence, action=action)


def ids(claim: ClaimResult) -> list[str]:
    return [job.id for job in claim.jobs]


async def test_the_results_have_the_order_of_the_steps(storage: PostgresStorage) -> None:
    for queue in QUEUES:
        await storage.enqueue(queue, [asked(f"{queue}{n}") for n in range(3)])
    lease = await leased(storage)

    claimed = await storage.serve([QueueStep(queue, limit=2) for queue in QUEUES], lease)
    settled = await storage.serve(
        [QueueStep(q, [done(job) for job in r.claim.jobs], 5) for q, r in zip(QUEUES, claimed, strict=True)],
        lease,
    )

    assert [["b0", "b1"], ["a0", "a1"], ["c0", "c1"]] == [ids(result.claim) for result in claimed]
    assert [["b2"], ["a2"], ["c2"]] == [ids(result.claim) for result in settled]
    assert [["done"] * 2] * 3 == [[one.status for one in result.settled] for result in settled]


async def test_a_step_may_settle_only_or_claim_only(storage: PostgresStorage) -> None:
    await storage.enqueue("a", [asked("a0"), asked("a1")])
    await storage.enqueue("b", [asked("b0")])
    lease = await leased(storage)
    [first] = await storage.serve([QueueStep("a", limit=1)], lease)

    settles, claims, neither = await storage.serve(
        [QueueStep("a", [done(first.claim.jobs[0])]), QueueStep("b", limit=1), QueueStep("c")], lease
    )

    assert (["done"], []) == ([one.status for one in settles.settled], ids(settles.claim))
    assert ((), ["b0"]) == (claims.settled, ids(claims.claim))
    assert ((), [], True) == (neither.settled, ids(neither.claim), neither.claim.now > 0)


async def test_settlements_of_all_kinds_reach_their_queue(storage: PostgresStorage) -> None:
    lease = await leased(storage)
    for queue in QUEUES:
        await storage.enqueue(queue, [asked("same"), asked("other")])
    claimed = await storage.serve([QueueStep(queue, limit=2) for queue in QUEUES], lease)
    actions: dict[str, SettleAction] = {
        "a": Complete(result=b"1"),
        "b": Fail(error=Error(type="E", message="broken")),
        "c": Complete(),
    }
    steps = [
        QueueStep(queue, [settlement(job, actions[queue]) for job in result.claim.jobs])
        for queue, result in zip(QUEUES, claimed, strict=True)
    ]

    await storage.serve(steps, lease)

    kinds = {}
    for queue in QUEUES:
        slots = await storage.get(queue, ["same", "other"])
        kinds[queue] = [(slot.outcome.kind, slot.outcome.result) for slot in slots if slot.outcome]
    assert {
        "a": [("completed", b"1")] * 2,
        "b": [("failed", None)] * 2,
        "c": [("completed", None)] * 2,
    } == kinds


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


async def test_a_queue_with_two_steps_is_refused(storage: PostgresStorage) -> None:
    with pytest.raises(Refused, match="twice"):
        await storage.serve([QueueStep("a"), QueueStep("a")], "0" * 32)


async def test_a_claim_under_an_unknown_lease_is_lost(storage: PostgresStorage) -> None:
    [result] = await storage.serve([QueueStep("a", limit=1)], "0" * 32)

    assert result.claim.lost
