"""A split of a large table into parts reads a sample of its ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked

Connect = Callable[[], Any]


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
