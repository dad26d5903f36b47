"""The plans of statements that read many rows: the tables are read once, and a split reads a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.column_query import column_query
from tests.storage.postgres.jobs import asked, claimed

Connect = Callable[[], Any]


async def executed_scans(connect: Connect, sql: str) -> list[str]:
    """Return the lines of the plan of a statement that read the table `live` and were executed."""
    connection = await connect()
    plan = await connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF) {sql}")
    lines = [line async for (line,) in plan]
    return [line for line in lines if "on live l" in line and "never executed" not in line]


@pytest.mark.parametrize("successors", [0, 1])
async def test_jobs_without_successors_are_read_by_one_scan(
    storage: PostgresStorage, connect: Connect, schema: str, successors: int
) -> None:
    await storage.enqueue("q", [asked(f"{number:04}") for number in range(1000)])
    if successors:
        await claimed(storage, "q", 1)
        await storage.enqueue("q", [asked("0000", b"2")])
    connection = await connect()
    await connection.execute("ANALYZE live")
    await connection.commit()
    sql = column_query(schema, "jobs", "q", ["id", "state"], state=None, after=None, until=None)

    found = [row async for row in await connection.execute(sql)]
    scans = await executed_scans(connect, sql)

    assert len(scans) == 1 + successors, scans
    assert 1000 + successors == len(found)
    assert bool(successors) == (("0000", "blocked") in found)


async def test_a_large_table_is_split_by_a_sample(storage: PostgresStorage, connect: Connect) -> None:
    """The parts have about equal sizes. The number of rows in the catalog decides how many are read."""
    for first in range(0, 3000, 1000):
        await storage.enqueue("q", [asked(f"{number:04}") for number in range(first, first + 1000)])
    connection = await connect()
    await connection.execute("ANALYZE live")
    await connection.commit()
    exact = await storage.split("q", 3)

    await connection.execute("UPDATE pg_class SET reltuples = 100000 WHERE oid = 'live'::regclass")
    await connection.commit()
    sampled = await storage.split("q", 3)

    assert ["0999", "1999"] == list(exact)
    assert sampled != exact
    assert 500 < int(sampled[0]) < 1500 < int(sampled[1]) < 2500
