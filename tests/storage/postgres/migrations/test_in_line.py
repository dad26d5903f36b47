"""Claims leave their jobs in the line, so that they change no index entry; `claims` says where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done, leased

Connect = Callable[[], Any]

MANY = 100
IN_LINE = "SELECT count(*) FROM live WHERE state = 'w' AND fence IS NOT NULL"
VIEW = """
SELECT count(*) FROM jobs WHERE state = 'active' AND lease = %s::uuid AND lease_expires_at IS NOT NULL
"""
CLAIMS = "SELECT count(*) FROM claims"
#: The rows that the current transaction has changed, and those of them that wrote no index entry.
CHANGED = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables
WHERE relname = 'live' AND schemaname = current_schema()
"""


async def fill(storage: PostgresStorage, jobs: int, prefix: str = "job", run_at: int | None = None) -> None:
    for start in range(0, jobs, 1000):
        numbers = range(start, min(start + 1000, jobs))
        batch = [NewJob(id=f"{prefix}{number:06}", run_at=run_at) for number in numbers]
        await storage.enqueue("q", [EnqueueRequest(job=job) for job in batch])


async def value(connection: Any, query: str) -> int:
    found = await (await connection.execute(query)).fetchone()
    await connection.commit()
    return int(found[0])


@pytest.mark.parametrize("size", [1, 200])
async def test_a_claim_writes_no_index_entries(storage: PostgresStorage, connect: Connect, size: int) -> None:
    await fill(storage, 300)
    connection = await connect()
    await connection.execute(
        "SELECT count(*) FROM claim(ARRAY['q'], ARRAY[%s], %s::uuid, NULL)", [size, await leased(storage)]
    )
    changed, without_entries = await (await connection.execute(CHANGED)).fetchone()
    await connection.commit()

    assert (size, size) == (changed, await value(connection, IN_LINE))
    assert without_entries > 0.75 * size


async def test_jobs_in_the_line_are_active_for_every_reader(
    storage: PostgresStorage, connect: Connect
) -> None:
    await fill(storage, 2 * MANY)
    lease = await leased(storage)
    jobs = (await storage.claim("q", lease, MANY)).jobs
    ids = [job.id for job in jobs]
    counts = (await storage.counts(["q"]))["q"]
    page = await storage.list("q", "active", limit=1000)
    waiting = await storage.list("q", "waiting", limit=1000)
    connection = await connect()

    assert (MANY, MANY) == (counts.waiting, counts.active)
    assert list(jobs) == [slot.current for slot in await storage.get("q", ids)]
    assert ids == [id for id, _ in page.items]
    assert set(ids).isdisjoint(id for id, _ in waiting.items)
    assert MANY == len(waiting.items)
    ((found,),) = await (await connection.execute(VIEW, [lease])).fetchall()
    assert MANY == found


async def test_the_next_claim_takes_the_next_jobs(storage: PostgresStorage) -> None:
    await fill(storage, 250)
    first = [job.id for job in await claimed(storage, limit=MANY)]
    second = [job.id for job in await claimed(storage, limit=MANY)]
    third = [job.id for job in await claimed(storage, limit=MANY)]

    assert [f"job{number:06}" for number in range(250)] == first + second + third
    assert 50 == len(third)
    assert () == await claimed(storage, limit=MANY)


async def test_a_job_before_those_in_the_line_is_claimed_first(storage: PostgresStorage) -> None:
    await fill(storage, MANY, run_at=2000)
    assert MANY == len(await claimed(storage, limit=MANY))
    await fill(storage, 1, "early", run_at=1000)
    await fill(storage, 1, "late", run_at=3000)

    assert ["early000000", "late000000"] == [job.id for job in await claimed(storage)]


@pytest.mark.parametrize("ends", ["expires", "is dropped"])
async def test_a_lease_that_ends_gives_its_jobs_back(
    opening: Callable[..., PostgresStorage], connect: Connect, ends: str
) -> None:
    async with opening(clock="manual") as storage:
        requests = [asked(f"{number}", run_at=0) for number in range(MANY)]
        await storage.enqueue("q", requests, now=1000)
        lease = (await storage.grant(["q"], 60_000, "test", now=1000)).lease
        jobs = (await storage.claim("q", lease, MANY, now=1000)).jobs
        if ends == "expires":
            returned = await storage.reap("q", MANY - 1, now=61_000)
            returned += await storage.reap("q", MANY, now=61_000)
            assert {"stalled"} == {job.kind for job in returned}
            assert {job.id for job in jobs} == {job.id for job in returned}
        else:
            assert {"q": 1} == await storage.drop(["q"], lease, MANY - 1, now=2000)
            assert {"q": 0} == await storage.drop(["q"], lease, MANY, now=2000)
        counts = (await storage.counts(["q"], now=61_000))["q"]
        connection = await connect()

        assert (MANY, 0) == (counts.waiting, counts.active)
        assert 0 == await value(connection, CLAIMS)


async def test_a_renewal_deletes_the_claims_without_active_jobs(
    storage: PostgresStorage, connect: Connect
) -> None:
    await fill(storage, 30)
    lease = await leased(storage)
    first, second, _ = [(await storage.claim("q", lease, 10)).jobs for _ in range(3)]
    connection = await connect()
    await storage.settle("q", [done(job) for job in (*first, *second[:9])])
    await storage.renew(["q"], lease, 60_000)
    assert 2 == await value(connection, CLAIMS)
    await storage.settle("q", [done(second[9])])
    await storage.renew(["q"], lease, 60_000)

    assert 1 == await value(connection, CLAIMS)


async def test_a_locked_job_hears_of_its_cancellation(storage: PostgresStorage, connect: Connect) -> None:
    await fill(storage, MANY)
    lease = await leased(storage)
    jobs = (await storage.claim("q", lease, MANY)).jobs
    assert ["requested"] == await storage.cancel("q", [jobs[5].id], running=True)
    mine = await connect()
    await mine.execute("SELECT FROM live WHERE id = %s FOR UPDATE", [jobs[5].id])

    renewed = (await storage.renew(["q"], lease, 60_000))["q"]

    assert (jobs[5].id,) == renewed.cancel_requested


async def test_limits_count_the_jobs_in_the_line(storage: PostgresStorage, connect: Connect) -> None:
    data = JobData(payload=b"1", key="k")
    jobs = [NewJob(id=f"{number:03}", data=data) for number in range(MANY + 2)]
    await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
    lease = await leased(storage)
    active = (await storage.claim("q", lease, MANY)).jobs
    mine = await connect()
    await mine.execute("SELECT FROM live WHERE id = %s FOR UPDATE", [active[0].id])

    await storage.configure("q", SettingsPatch(max_active=MANY))
    assert () == (await storage.claim("q", lease, 10)).jobs
    await storage.configure("q", SettingsPatch(max_active=None, per_key=MANY))
    assert () == (await storage.claim("q", lease, 10)).jobs
    await storage.configure("q", SettingsPatch(per_key=MANY + 1))
    assert 1 == len((await storage.claim("q", lease, 10)).jobs)


async def test_an_end_in_the_line_makes_room_for_its_key(storage: PostgresStorage) -> None:
    data = JobData(payload=b"1", key="k")
    jobs = [NewJob(id=f"{number:03}", data=data) for number in range(MANY + 2)]
    await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
    lease = await leased(storage)
    active = (await storage.claim("q", lease, MANY)).jobs
    await storage.configure("q", SettingsPatch(per_key=MANY))
    assert () == (await storage.claim("q", lease, 10)).jobs
    await storage.settle("q", [done(active[0])])

    assert 1 == len((await storage.claim("q", lease, 10)).jobs)


async def test_sql_programs_find_the_jobs_of_a_large_claim(
    storage: PostgresStorage, connect: Connect
) -> None:
    await fill(storage, 2 * MANY)
    connection = await connect()
    found = await (await connection.execute("SELECT id FROM claim_jobs('q', %s)", [2 * MANY])).fetchall()
    await connection.commit()

    assert [f"job{number:06}" for number in range(2 * MANY)] == [id for (id,) in found]


async def test_large_payloads_come_in_several_rows(storage: PostgresStorage) -> None:
    """An array of Postgres has at most 1 GB, so a claim of more than 100 MB has rows of 8 jobs."""
    payload = b"1" * 1_000_000
    for number in range(110):
        await storage.enqueue("q", [asked(f"{number:03}", payload)])
    jobs = await claimed(storage, limit=200)

    assert [f"{number:03}" for number in range(110)] == [job.id for job in jobs]
    assert {len(payload)} == {len(job.data.payload) for job in jobs}
