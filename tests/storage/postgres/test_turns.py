"""Turns of keys on Postgres: steps beside `configure` and claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dibs.model.requests import JobPatch, SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import done, fair_lease, keyed, leased

Connect = Callable[[], Any]
Opening = Callable[..., PostgresStorage]

ENQUEUE = "SELECT enqueue('q', NULL, true, %s, %s, NULL, NULL, NULL, NULL, NULL, NULL, %s, NULL, NULL)"


@pytest.fixture
async def lease(storage: PostgresStorage) -> str:
    return await fair_lease(storage)


async def enqueue(storage: PostgresStorage, *pairs: str) -> None:
    """Enqueue jobs. A pair is an id and a key, as "a:k"."""
    await storage.enqueue("q", [keyed(*pair.split(":")) for pair in pairs])


async def ids(storage: PostgresStorage, lease: str, limit: int = 10) -> list[str]:
    return [job.id for job in (await storage.claim("q", lease, limit)).jobs]


async def rows(connection: Any, query: str) -> Sequence[Any]:
    return list(await (await connection.execute(query)).fetchall())


async def begun(connect: Connect, isolation: str, *ids: str, key: str = "k") -> Any:
    """Return a connection whose open transaction has enqueued jobs, as in a transaction of a caller."""
    opened = await connect()
    await opened.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    await opened.execute(ENQUEUE, [list(ids), [b"1"] * len(ids), [key] * len(ids)])
    return opened


async def test_a_job_of_an_older_snapshot_takes_its_turn(
    storage: PostgresStorage, lease: str, connect: Connect, connection: Any
) -> None:
    """A transaction under REPEATABLE READ lets its jobs wait in the line; the next claim finds them there."""
    caller = await begun(connect, "REPEATABLE READ", "c", "d")
    await enqueue(storage, "a:m", "b:m")
    await caller.commit()

    assert [("c", "w"), ("d", "w")] == await rows(
        connection, "SELECT id, state::text FROM live WHERE key = 'k' ORDER BY id"
    )
    assert ["a", "b", "c", "d"] == sorted(await ids(storage, lease))


async def test_a_job_that_was_enqueued_before_fair_was_set_takes_its_turn(
    storage: PostgresStorage, connect: Connect
) -> None:
    lease = await leased(storage)
    caller = await begun(connect, "READ COMMITTED", "c", "d")
    await storage.configure("q", SettingsPatch(fair=True))
    await enqueue(storage, "a:m", "b:m")
    first = await ids(storage, lease, 1)
    await caller.commit()

    assert ["a"] == first
    assert ["b", "c", "d"] == await ids(storage, lease)


async def test_fair_is_removed_after_an_open_enqueue(
    storage: PostgresStorage, lease: str, connect: Connect, connection: Any
) -> None:
    """No job gets the state k after `fair` was removed: the configure waits for the enqueue."""
    caller = await begun(connect, "READ COMMITTED", "c", "d")
    waiting = asyncio.create_task(storage.configure("q", SettingsPatch(fair=False)))
    while not await rows(connection, "SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await caller.commit()
    await waiting

    assert [] == await rows(connection, "SELECT id FROM live WHERE state = 'k'")
    assert ["c", "d"] == await ids(storage, lease)


async def test_a_key_is_paused_beside_an_open_enqueue(
    storage: PostgresStorage, lease: str, connect: Connect
) -> None:
    caller = await begun(connect, "READ COMMITTED", "c")
    await storage.configure("q", SettingsPatch(shares={"k": 0}))
    await caller.commit()

    assert [] == await ids(storage, lease)


async def test_a_key_that_left_and_joined_between_two_claims_is_at_the_back(
    storage: PostgresStorage, lease: str
) -> None:
    await enqueue(storage, "a:k", "b:m")
    assert ["a"] == await ids(storage, lease, 1)
    await enqueue(storage, "c:k", "d:n")
    await storage.cancel("q", ["c"])
    await enqueue(storage, "e:k")

    assert ["b", "d", "e"] == await ids(storage, lease)


async def test_a_claim_with_room_reads_more_changes_than_it_reads_at_once(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    """20,000 changes of keys without jobs come before the one of the job."""
    await connection.execute(
        "INSERT INTO turn_changes SELECT 1, n, 'gone' || n, 1 FROM generate_series(1, 20000) AS s (n)"
    )
    await enqueue(storage, "a:k")

    assert ["a"] == await ids(storage, lease)
    assert [] == await rows(connection, "SELECT key FROM turns")


async def test_a_job_that_was_cancelled_without_a_note_holds_up_no_other(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    """A cancel that read the settings before `fair` was set notes no change of turns."""
    await enqueue(storage, "a:k", "b:k", "c:m", "d:n")
    assert ["a"] == await ids(storage, lease, 1)
    await connection.execute("DELETE FROM live WHERE id = 'c'")
    first = await ids(storage, lease, 1)
    second = await ids(storage, lease)

    assert ["d", "b"] == [*first, *second]


async def test_a_claim_passes_over_a_job_that_another_call_has_locked(
    storage: PostgresStorage, lease: str, connect: Connect
) -> None:
    await enqueue(storage, "a:k", "b:k", "c:m")
    caller = await connect()
    await caller.execute("SELECT 1 FROM live WHERE id = 'a' FOR UPDATE")

    assert ["b", "c"] == await ids(storage, lease)
    await caller.rollback()
    assert ["a"] == await ids(storage, lease)


async def test_an_emptied_queue_keeps_no_turns(storage: PostgresStorage, lease: str, connection: Any) -> None:
    await enqueue(storage, "a:k", "b:k", "c:m", "d:n")
    await storage.cancel("q", ["d"])
    jobs = (await storage.claim("q", lease, 10)).jobs
    await storage.settle("q", [done(job) for job in jobs])
    await storage.claim("q", lease, 10)

    assert ["a", "c", "b"] == [job.id for job in jobs]
    assert [] == await rows(connection, "SELECT key FROM turns")
    assert [] == await rows(connection, "SELECT key FROM turn_changes UNION ALL SELECT key FROM freed")


async def test_removed_turns_leave_all_jobs_in_the_line(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    await enqueue(storage, "a:k", "b:k", "c:m", "d:m")
    await storage.amend("q", "d", JobPatch(priority=1))
    assert ["d"] == await ids(storage, lease, 1)
    await storage.configure("q", SettingsPatch(fair=False, per_key=2))

    assert [] == await rows(connection, "SELECT key FROM turns UNION ALL SELECT key FROM turn_changes")
    assert ["a", "b", "c"] == await ids(storage, lease)
