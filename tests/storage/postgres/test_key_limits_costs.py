"""The costs of limits by key on Postgres: how many jobs a claim files, and the plans of its queries."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.vacuum import MOST_CLAIMS
from tests.storage.postgres.jobs import leased
from tests.storage.postgres.test_key_limits import ids, keyed, rows


async def test_a_claim_files_many_jobs_over_several_calls(storage: PostgresStorage, connection: Any) -> None:
    """A claim passes over the jobs that it does not file. Those that it files count for the next vacuum."""
    await storage.configure("q", SettingsPatch(per_key=1))
    lease = await leased(storage)
    await storage.enqueue("q", [keyed("first", "k")])
    assert ["first"] == await ids(storage, lease, 1)
    await connection.execute(
        "INSERT INTO live (q, id, state, priority, run_at, seq, first, revision, enqueued_at, payload, key) "
        "SELECT 1, 'full' || n, 'w', 0, n, n, n, n, n, '1', 'k' FROM generate_series(1, 12000) n"
    )
    await storage.enqueue("q", [keyed("x", "x"), keyed("y", "y")])
    before = storage._vacuum._claimed
    storage._vacuum._limit = MOST_CLAIMS  # a vacuum would set the count to 0

    assert ["x"] == await ids(storage, lease, 1)
    held_back = (await rows(connection, "SELECT count(*) FROM live WHERE state = 'k'"))[0][0]
    assert 10_000 <= held_back < 12_000
    assert held_back + 1 == storage._vacuum._claimed - before
    assert ["y"] == await ids(storage, lease, 10)
    assert [(12_000,)] == await rows(connection, "SELECT count(*) FROM live WHERE state = 'k'")


#: Queries of the functions, and the only index that serves each of them.
PLANS = {
    "FROM live WHERE q + 0 = 1 AND busy_key = 'a' LIMIT 5": "live_keyed",
    "FROM live WHERE q + 0 = 1 AND state = 'k' AND key = 'a' ORDER BY priority DESC, run_at, seq LIMIT 1": (
        "live_held_back"
    ),
    "FROM live WHERE q + 0 = 1 AND state = 'k'": "live_held_back",
    "FROM live WHERE q = 1 AND state = 'k' ORDER BY priority DESC, run_at, seq LIMIT 9": "live_line",
    "FROM live WHERE q = 1 AND state = 'w' AND priority = 0 AND run_at <= 9 AND (run_at, seq) > (1, 1) "
    "ORDER BY run_at, seq LIMIT 9": "live_line",
    "FROM clocks WHERE q = 1 AND key = 'a'": "clocks_pkey",
    "FROM clocks WHERE q + 0 = 1 AND waits AND opens > 9 ORDER BY opens LIMIT 1": "clocks_opening",
    "FROM freed WHERE q = 1": "freed_queue",
}


@pytest.mark.parametrize("query", PLANS)
async def test_a_plan_for_an_empty_table_is_good_later(
    storage: PostgresStorage, connection: Any, query: str
) -> None:
    """A session keeps a plan for hours, and all indexes of an empty table cost the same."""
    for setting in ("enable_seqscan", "enable_bitmapscan"):
        await connection.execute(f"SET {setting} = off")

    (((plan,),),) = await rows(connection, f"EXPLAIN (FORMAT JSON) SELECT 1 {query}")

    assert f'"Index Name": "{PLANS[query]}"'.replace('"', "'") in str(plan)
