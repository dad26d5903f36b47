"""The blocks and index entries that claims of queues with keys read.

A transaction that is open elsewhere in the database keeps vacuum from removing rows, and claims read them. So
these tests have a server for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch, StartRate
from dibs.storage.postgres import PostgresStorage
from dibs_conformance.servers import PostgresServer, start_postgres
from tests.storage.postgres.jobs import done, fair_lease, keyed, leased

Connect = Callable[[], Any]

#: Keys beside those that a claim takes.
MANY = 3_000
#: A look at each of MANY keys reads at least two blocks of an index.
MOST_BLOCKS = 1_500


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with start_postgres() as server:
        yield server


@pytest.fixture
async def lease(storage: PostgresStorage) -> str:
    return await fair_lease(storage)


async def blocks(connection: Any, lease: str) -> int:
    """Return the number of blocks that a claim of 10 jobs reads."""
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM claim('{q}', '{10}', %s, NULL)"
    ((plan,),) = await (await connection.execute(query, [lease])).fetchall()
    found = plan[0]["Plan"]
    assert found["Actual Rows"] > 1
    return int(found["Shared Hit Blocks"] + found["Shared Read Blocks"])


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(SettingsPatch(), id="scheduled"),
        pytest.param(SettingsPatch(per_key=1), id="full"),
        pytest.param(SettingsPatch(), id="with jobs of a lower priority"),
    ],
)
async def test_a_claim_reads_only_the_keys_that_it_takes(
    storage: PostgresStorage, connection: Any, patch: SettingsPatch, request: pytest.FixtureRequest
) -> None:
    """Keys without an admitted due job of the highest priority cost a claim nothing."""
    case = request.node.callspec.id
    await storage.configure("q", SettingsPatch(fair=True))
    await storage.configure("q", patch)
    lease = await leased(storage)
    for start in range(0, MANY, 1_000):
        jobs = [
            keyed(f"x{n}", f"x{n}", delay=60_000 if case == "scheduled" else None)
            for n in range(start, start + 1_000)
        ]
        await storage.enqueue("q", jobs)
    if case == "full":
        for _ in range(MANY // 1_000):
            await storage.claim("q", lease, 1_000)
        await storage.enqueue("q", [keyed(f"y{n}", f"x{n}") for n in range(1_000)])
        await storage.claim("q", lease, 1)
    top = [
        EnqueueRequest(job=NewJob(id=f"top{n}", data=JobData(payload=b"1", key=f"top{n}", priority=1)))
        for n in range(60)
    ]
    await storage.enqueue("q", top)
    await storage.claim("q", lease, 5)
    await connection.execute("VACUUM ANALYZE")
    await blocks(connection, lease)  # It reads the catalog.

    assert MOST_BLOCKS > await blocks(connection, lease)


async def test_a_claim_reads_no_more_jobs_of_a_large_share_than_it_takes(
    storage: PostgresStorage, lease: str, connection: Any
) -> None:
    await storage.configure("q", SettingsPatch(shares={"k": 1_000}))
    for start in range(0, MANY, 1_000):
        await storage.enqueue("q", [keyed(f"a{n}") for n in range(start, start + 1_000)])
    await storage.claim("q", lease, 1)
    await blocks(connection, lease)  # It reads the catalog.

    # A claim that reads all waiting jobs of the key reads 356 blocks, and 213 were seen.
    assert 300 > await blocks(connection, lease)


#: Each index of the rows that steps append for the next claim, with a queue whose claims read them.
APPENDED = {
    "freed_queue": SettingsPatch(per_key=5),
    "turn_changes_order": SettingsPatch(fair=True),
    "costs_queue": SettingsPatch(key_rate=StartRate(1_000_000, 1_000, 1_000_000)),
}
READ = "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"


async def entries_read(connection: Any, lease: str, index: str) -> int:
    """Return the number of entries of an index that a claim reads, also dead ones. Roll the claim back."""
    async with connection.transaction(force_rollback=True):
        await connection.execute("SELECT * FROM claim('{q}', '{100}', %s, NULL)", [lease])
        ((read,),) = await (await connection.execute(READ, [index])).fetchall()
    return int(read)


@pytest.mark.parametrize("index", APPENDED)
async def test_a_claim_reads_no_rows_that_claims_deleted_under_an_old_snapshot(
    storage: PostgresStorage, connect: Connect, connection: Any, index: str
) -> None:
    await storage.configure("q", APPENDED[index])
    lease = await leased(storage)
    report = await connect()
    await report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await report.execute("SELECT count(*) FROM live")
    writer = await connect()
    await writer.execute("CREATE TEMPORARY TABLE other AS SELECT pg_current_xact_id()")
    reads = []
    for rounds in (5, 50):
        for number in range(rounds):
            await storage.enqueue("q", [keyed(f"{rounds}-{number}-{n}", f"k{n}") for n in range(60)])
            jobs = (await storage.claim("q", lease, 1_000)).jobs
            assert jobs
            await storage.settle("q", [structs.replace(done(job), cost=2_000) for job in jobs])
        await storage.enqueue("q", [keyed(f"{rounds}-last-{n}", f"k{n}") for n in range(60)])
        reads.append(await entries_read(connection, lease, index))
    await report.rollback()

    # Without the notes in `reads`, they are 300 and 3,300.
    assert [True, True] == [0 < read <= 250 for read in reads]


async def test_a_claim_reads_the_key_of_a_settlement_that_commits_late(
    storage: PostgresStorage, connect: Connect
) -> None:
    """Its transaction was open when other claims noted what they had read."""
    await storage.configure("q", SettingsPatch(per_key=1))
    lease = await leased(storage)
    await storage.enqueue("q", [keyed("first", "late"), keyed("second", "late")])
    (first,) = (await storage.claim("q", lease, 10)).jobs
    caller = await connect()
    await storage.in_transaction(caller).settle("q", [done(first)])
    for turn in range(3):
        await storage.enqueue("q", [keyed(f"{turn}-{n}", f"k{n}") for n in range(100)])
        jobs = (await storage.claim("q", lease, 1_000)).jobs
        assert 100 == len(jobs)
        await storage.settle("q", [done(job) for job in jobs])
    await storage.claim("q", lease, 10)
    await caller.commit()

    assert ["second"] == [job.id for job in (await storage.claim("q", lease, 10)).jobs]
