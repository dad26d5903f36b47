"""The plans of queries: a claim reads only the first entries of an index, however many jobs wait.

The *line* is the order in which claims take the waiting jobs of a queue. The index `live_line` has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs.storage.postgres import PostgresStorage, vacuum
from dibs.storage.postgres.vacuum import claims_per_vacuum
from tests.storage.postgres.jobs import asked, claimed, done, leased

Connect = Callable[[], Any]

#: The query of claim() in functions/claim.sql, for one priority.
FRONT = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT ctid FROM live
WHERE q = 1 AND state = 'w' AND priority = 0 AND run_at <= 2000000000000
ORDER BY run_at, seq LIMIT 100 FOR UPDATE SKIP LOCKED
"""
LEASE = "lease = '00000000000000000000000000000000'"
FILL = """
INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload)
SELECT 1, prefix || n, 'w', level, at + n, n, n, n, at, '{}'::bytea
FROM generate_series(1, many) AS n, (SELECT %s AS prefix, %s::int AS level, %s::bigint AS at) x
"""


async def fill(connection: Any, prefix: str, many: int, level: int, at: int) -> None:
    await connection.execute(FILL.replace("many", str(many)), [prefix, level, at])
    await connection.execute("SELECT note_start(1, %s::smallint, %s, 0)", [level, at])


def touched(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def names(plan: dict[str, Any]) -> list[str]:
    below = [name for each in plan.get("Plans", ()) for name in names(each)]
    return [plan["Node Type"], *below]


#: Queries of the functions, and the only index that serves each of them.
PLANS = {
    "FROM ended WHERE q = 1 AND id = 'a'": "ended_pkey",
    "FROM ended WHERE q + 0 = 1 AND kind = 'completed' AND expires_at <= 1": "ended_expiry",
    "FROM request_keys WHERE q = 1 AND key = 'a'": "request_keys_pkey",
    "FROM request_keys WHERE q + 0 = 1 AND expires_at <= 1": "request_keys_expiry",
    "FROM key_sets WHERE q = 1 AND name = 'a' AND n > 1 ORDER BY n": "key_sets_pkey",
    "FROM key_sets WHERE q + 0 = 1 AND expires_at <= 1": "key_sets_expiry",
    f"FROM leases WHERE q = 1 AND {LEASE} AND expires_at > 1": "leases_pkey",
    "FROM leases WHERE q + 0 = 1 AND expires_at <= 1": "leases_expiry",
    "FROM live WHERE q = 1 AND id = 'a'": "live_pkey",
    f"FROM live WHERE q = 1 AND cancel_requested AND {LEASE}": "live_asked",
    "FROM live WHERE q = 1 AND state <> 'h' AND (state = 'h' OR greatest(retries, stalls, timeouts) > 0)": (
        "live_returned"
    ),
    "FROM live WHERE q + 0 = 1 AND busy_key = 'k'": "live_keyed",
    f"FROM claims WHERE q = 1 AND {LEASE}": "claims_pkey",
    "FROM marks WHERE q = 1 AND priority < 9 ORDER BY q, priority DESC, n DESC LIMIT 1": "marks_newest",
    "FROM live WHERE q = 1 AND state = 'w' AND priority = 0 AND run_at <= 1 ORDER BY run_at": "live_line",
}


async def test_a_plan_for_an_empty_table_is_good_later(
    storage: PostgresStorage,
    connect: Connect,
) -> None:
    """A session keeps a plan for hours, and all indexes of an empty table cost the same."""
    connection = await connect()
    await connection.execute("SET enable_seqscan = off")
    used = {}
    for query in PLANS:
        ((found,),) = await (await connection.execute(f"EXPLAIN (FORMAT JSON) SELECT 1 {query}")).fetchall()
        used[query] = indexes(found[0]["Plan"])

    assert {query: {index} for query, index in PLANS.items()} == used


def most_rows(plan: dict[str, Any]) -> int:
    """Return the largest number of rows that a step of the plan returned."""
    return max(int(plan["Actual Rows"]), *(most_rows(each) for each in plan.get("Plans", ())), 0)


def indexes(plan: dict[str, Any]) -> set[str]:
    below = {name for each in plan.get("Plans", ()) for name in indexes(each)}
    return below | ({plan["Index Name"]} if "Index Name" in plan else set())


@pytest.fixture
async def table(storage: PostgresStorage, connect: Connect) -> Any:
    """A connection to a queue with 20,000 due jobs, and 20,000 scheduled ones of a higher priority."""
    await storage.enqueue("q", [asked("first")])
    connection = await connect()
    await fill(connection, "due", 20_000, 0, 1_000_000_000_000)
    await fill(connection, "later", 20_000, 9, 1_900_000_000_000_000)
    await connection.commit()
    return connection


async def test_a_claim_reads_the_index_from_its_front(table: Any) -> None:
    ((found,),) = await (await table.execute(FRONT)).fetchall()
    plan = found[0]["Plan"]

    assert ["Limit", "LockRows", "Index Scan"] == names(plan)
    assert 600 > touched(plan)


async def test_scheduled_jobs_of_a_higher_priority_cost_a_claim_nothing(
    table: Any, storage: PostgresStorage
) -> None:
    claim = await storage.claim("q", await leased(storage), 100)

    assert 100 == len(claim.jobs)
    assert {0} == {job.data.priority for job in claim.jobs}
    assert 1_900_000_000_000_001 == claim.next_due
    explained = FRONT.replace("priority = 0", "priority = 9")
    ((found,),) = await (await table.execute(explained)).fetchall()
    assert 8 > touched(found[0]["Plan"])


async def test_a_page_reads_only_its_own_rows(table: Any, storage: PostgresStorage) -> None:
    """If each page read all rows after it, the cost of a listing would grow with the square of its length."""
    await table.execute("ANALYZE")
    for state in (None, "waiting"):
        for ends in (False, True):
            query = storage._server.queries.page(state, ends=ends).decode()
            plan = await explained(table, query, after="due5", until="later5", limit=10)

            assert 10 == most_rows(plan)

    # The last page of a part has few ids, and 20,000 come after it.
    query = storage._server.queries.page(None, ends=True).decode()
    assert 1 == most_rows(await explained(table, query, after="due9998", until="due9999", limit=1000))


async def explained(table: Any, query: str, **words: Any) -> dict[str, Any]:
    """Run a query about the queue, and return its plan with the rows and the blocks that each step read."""
    words |= {"queue": "q", "now": None}
    found = await table.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", words)
    plan: dict[str, Any] = (await found.fetchone())[0][0]["Plan"]
    return plan


async def test_each_priority_in_use_is_read_in_order(storage: PostgresStorage, connect: Connect) -> None:
    connection = await connect()
    await storage.enqueue("q", [asked("first")])
    for level in (-3, 5, 0, 7):
        await fill(connection, f"p{level}_", 3, level, 1_000_000_000_000)
    await connection.commit()

    assert [7, 7, 7, 5, 5, 5, 0, 0, 0, 0, -3, -3] == [
        job.data.priority for job in await claimed(storage, limit=12)
    ]


@pytest.mark.parametrize(
    ("rows", "claims"), [(-1, 3_000), (20_000, 3_333), (100_000, 25_000), (10**7, 50_000)]
)
def test_a_small_table_is_vacuumed_more_often(rows: int, claims: int) -> None:
    assert claims == claims_per_vacuum(rows)


async def test_a_process_with_many_claims_vacuums(
    storage: PostgresStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "FEWEST_CLAIMS", 5)
    monkeypatch.setattr(storage._vacuum, "_limit", 5)
    await storage.enqueue("q", [asked(f"{n}") for n in range(10)])
    await claimed(storage)
    assert storage._vacuum._task is not None
    await storage._vacuum._task
    look = await connect()
    # Before Postgres 15, a separate process of the server collects its statistics, with a delay.
    async with asyncio.timeout(60):
        while not await was_vacuumed(look):  # noqa: ASYNC110 - the server sends no message about it
            await asyncio.sleep(0.05)


async def test_a_table_is_vacuumed_by_its_size_from_the_first_time_on(
    storage: PostgresStorage, connect: Connect
) -> None:
    connection = await connect()
    await storage.enqueue("q", [asked("first")])
    await fill(connection, "due", 80_000, 0, 1_000_000_000_000)
    await connection.execute("ANALYZE live")
    await connection.commit()

    storage._vacuum.count(10_000)
    assert storage._vacuum._task is not None
    await storage._vacuum._task

    assert storage._vacuum._claimed == 10_000, "no vacuum"
    assert storage._vacuum._limit == pytest.approx(20_000, rel=0.05)


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held"])
async def test_rows_that_a_vacuum_cannot_remove_count_as_rows(
    storage: PostgresStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    """While a report holds a snapshot, each vacuum reads all rows that have died since its begin."""
    monkeypatch.setattr(vacuum, "FEWEST_CLAIMS", 5)
    report = await connect()
    if is_held:
        await report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await report.execute("SELECT 1 FROM queues")
    lease = await leased(storage)
    for part in range(2):
        await storage.enqueue("q", [asked(f"{part}-{n}") for n in range(300)])
        jobs = (await storage.claim("q", lease, 300)).jobs
        await storage.settle("q", [done(job) for job in jobs])
        # A claim may have begun a vacuum.
        if storage._vacuum._task is not None:
            await storage._vacuum._task

    # A statement of another session may hold a snapshot, too, but for a moment.
    async with asyncio.timeout(60):
        while True:
            storage._vacuum._rows = -1.0
            storage._vacuum.count(10_000)
            assert storage._vacuum._task is not None
            await storage._vacuum._task
            if storage._vacuum._limit <= 50 or is_held:
                break
    assert (storage._vacuum._limit > 50) == is_held


async def was_vacuumed(connection: Any) -> bool:
    """Return whether the table `live` was vacuumed once, by the statistics that a new transaction reads."""
    if connection.info.server_version >= 150_000:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    found = await connection.execute(
        "SELECT vacuum_count FROM pg_stat_user_tables WHERE relid = 'live'::regclass"
    )
    ((times,),) = await found.fetchall()
    await connection.commit()
    return bool(times == 1)
