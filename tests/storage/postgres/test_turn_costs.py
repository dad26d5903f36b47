"""The blocks that a claim of a queue with turns of keys reads.

A transaction that is open elsewhere in the database keeps vacuum from removing rows, and claims read them. So
these tests have a server for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.postgres import PostgresStorage
from dibs_conformance.servers import PostgresServer, start_postgres
from tests.storage.postgres.jobs import fair_lease, keyed, leased

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
