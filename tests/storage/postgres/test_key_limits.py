"""Limits by key and by rate on Postgres: jobs held back, freed keys, and clocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import (
    DEFAULT_UPDATE,
    EnqueueRequest,
    JobPatch,
    OnConflict,
    SettingsPatch,
    StartRate,
    Update,
)
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import done, leased

Connect = Callable[[], Any]
Opening = Callable[..., PostgresStorage]

NOW = 1_700_000_000_000


def keyed(
    id: str, key: str | None = "k", *, priority: int = 0, on_conflict: OnConflict = DEFAULT_UPDATE
) -> EnqueueRequest:
    data = JobData(payload=b"1", key=key, priority=priority)
    return EnqueueRequest(job=NewJob(id=id, data=data), on_conflict=on_conflict)


async def enqueue(storage: PostgresStorage, *requests: EnqueueRequest) -> None:
    await storage.enqueue("q", requests)


async def ids(storage: PostgresStorage, lease: str, limit: int = 10) -> list[str]:
    return [job.id for job in (await storage.claim("q", lease, limit)).jobs]


async def one(storage: PostgresStorage, lease: str) -> Job:
    (job,) = (await storage.claim("q", lease, 10)).jobs
    return job


async def states(connection: Any) -> dict[str, str]:
    """Return the state of each job by its id; `a` for a job that is active under a lease."""
    query = "SELECT id, CASE WHEN lease IS NULL THEN state::text ELSE 'a' END FROM live WHERE q = 1"
    found = await connection.execute(query)
    return dict(await found.fetchall())


async def rows(connection: Any, query: str) -> Sequence[Any]:
    return list(await (await connection.execute(query)).fetchall())


@pytest.fixture
async def lease(storage: PostgresStorage, connection: Any) -> str:
    """The lease of a claim that took `a`.

    The claim holds back `b` and `c`: it took them out of the line, because their key is full.
    """
    await storage.configure("q", SettingsPatch(per_key=1))
    await enqueue(storage, keyed("a"), keyed("b"), keyed("c"), keyed("other", None, priority=-1))
    lease = await leased(storage)
    assert ["a", "other"] == await ids(storage, lease)
    assert {"a": "a", "b": "k", "c": "k", "other": "a"} == await states(connection)
    return lease


# -- the first job that a key holds back returns ----------------------------------------------------------


async def test_the_fast_way_to_complete_frees_the_key(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    (slot,) = await storage.get("q", ["a"])
    assert slot.current is not None

    await storage.settle("q", [done(slot.current)])

    assert [("k",)] == await rows(connection, "SELECT key FROM freed")
    assert ["b"] == await ids(storage, lease)
    assert [] == await rows(connection, "SELECT key FROM freed")


@pytest.fixture
async def brought(storage: PostgresStorage, lease: str, connection: Any) -> str:
    """The same lease, after a claim that put `b` back into the line and took no job, by max_active."""
    await storage.configure("q", SettingsPatch(max_active=1))
    await storage.forget("q", ["a"])
    assert [] == await ids(storage, lease)
    assert {"b": "w", "c": "k", "other": "a"} == await states(connection)
    await storage.configure("q", SettingsPatch(max_active=None))
    return lease


BEHIND: dict[str, tuple[Callable[[PostgresStorage], Awaitable[Any]], list[str]]] = {
    "cancelled": (lambda storage: storage.cancel("q", ["b"]), ["c"]),
    "forgotten": (lambda storage: storage.forget("q", ["b"]), ["c"]),
    "put off": (lambda storage: storage.amend("q", "b", JobPatch(delay=60_000)), ["c"]),
    "of another key": (
        lambda storage: enqueue(storage, keyed("b", "another", on_conflict=Update(run_at="never"))),
        ["b", "c"],
    ),
}


@pytest.mark.parametrize(("change", "taken"), BEHIND.values(), ids=BEHIND)
async def test_a_job_behind_one_that_leaves_its_place_comes_back(
    storage: PostgresStorage,
    brought: str,
    change: Callable[[PostgresStorage], Awaitable[Any]],
    taken: list[str],
) -> None:
    await change(storage)

    assert taken == await ids(storage, brought)


async def test_a_claim_reads_on_right_behind_the_jobs_of_a_full_key(
    storage: PostgresStorage, lease: str
) -> None:
    """A claim of 1 reads 21 jobs first. The next one has the same time and the next number."""
    await enqueue(storage, *(keyed(f"full {number}") for number in range(21)), keyed("open", "another"))

    assert ["open"] == await ids(storage, lease, 1)


async def test_a_locked_job_is_brought_back_once_it_is_free(
    storage: PostgresStorage, lease: str, connect: Connect
) -> None:
    """A claim waits for no lock, and must not forget the key."""
    other = await connect()
    await storage.forget("q", ["a", "c"])
    await other.execute("SELECT 1 FROM live WHERE id = 'b' FOR UPDATE")
    assert [] == await ids(storage, lease)
    await other.rollback()

    assert ["b"] == await ids(storage, lease)


async def test_a_settle_that_commits_after_the_claim_is_not_lost(
    storage: PostgresStorage, lease: str, connect: Connect
) -> None:
    """The claim still counts the run, and files a job that the settle does not see."""
    connection = await connect()
    (slot,) = await storage.get("q", ["a"])
    assert slot.current is not None
    async with connection.transaction():
        await storage.in_transaction(connection).settle("q", [done(slot.current)])
        await enqueue(storage, keyed("new"))
        assert [] == await ids(storage, lease)

    assert ["b"] == await ids(storage, lease)


# -- settings that change ----------------------------------------------------------------------------


async def test_without_limits_filed_jobs_are_claimed_in_order(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    await storage.configure("q", SettingsPatch(per_key=None))
    await enqueue(storage, keyed("last"), keyed("first", priority=1))

    assert ["first", "b"] == await ids(storage, lease, 2)
    assert ["c", "last"] == await ids(storage, lease)
    assert [(False,)] == await rows(connection, "SELECT has_held_back FROM queues")


# -- what the other verbs see ------------------------------------------------------------------------


async def test_filed_jobs_wait(storage: PostgresStorage, lease: str) -> None:
    assert 2 == (await storage.counts(["q"]))["q"].waiting
    assert ["b", "c"] == [id for id, _ in (await storage.list("q", "waiting")).items]
    assert [] == list((await storage.list("q", "scheduled")).items)
    assert ["cancelled"] == await storage.cancel("q", ["b"])
    assert "amended" == await storage.amend("q", "c", JobPatch(payload=b"2"))
    (slot,) = await storage.get("q", ["c"])
    assert slot.current is not None
    assert (None, b"2") == (slot.current.run, slot.current.data.payload)


async def test_prune_removes_the_freed_keys_of_a_queue_without_limits(
    storage: PostgresStorage, connection: Any
) -> None:
    await enqueue(storage, keyed("a"))
    job = await one(storage, await leased(storage))
    await storage.settle("q", [done(job)])
    assert [("k",)] == await rows(connection, "SELECT key FROM freed")

    await storage.prune("q", 10)

    assert [] == await rows(connection, "SELECT key FROM freed")


async def test_prune_keeps_the_freed_keys_of_a_queue_with_a_limit(
    storage: PostgresStorage, lease: str
) -> None:
    await storage.forget("q", ["a"])

    await storage.prune("q", 10)

    assert ["b"] == await ids(storage, lease)


async def test_prune_removes_clocks_without_effect(opening: Opening, connection: Any) -> None:
    async with opening(clock="manual") as storage:
        await storage.configure("q", SettingsPatch(key_rate=StartRate(1, 1000)), now=NOW)
        lease = (await storage.grant(["q"], 60_000, "test", now=NOW)).lease
        await storage.enqueue("q", [keyed("a", "a"), keyed("b", "b"), keyed("b2", "b")], now=NOW)
        await storage.claim("q", lease, 1, now=NOW)
        await storage.claim("q", lease, 1, now=NOW + 500)

        await storage.prune("q", 10, now=NOW + 1000)

    assert [("b",)] == await rows(connection, "SELECT key FROM clocks")


# -- waits -------------------------------------------------------------------------------------------


async def test_jobs_of_a_full_key_do_not_end_a_wait(storage: PostgresStorage, lease: str) -> None:
    """The probe of the kit allows a few wrong wake-ups; Postgres has none."""
    await enqueue(storage, keyed("new"))
    await ids(storage, lease)

    assert not (await storage.wait(["q"], timeout=0.2)).woken
