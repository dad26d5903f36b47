"""enqueue_one() runs without the settings of other functions: it must not depend on those of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked

Connect = Callable[[], Any]

SCANS = """
SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_user_tables
WHERE relname IN ('queues', 'live') AND schemaname = %s
"""


async def call(connection: Any, schema: str, id: str) -> tuple[Any, ...]:
    query = f"SELECT * FROM {schema}.enqueue_one('q', NULL, %s, '1')"
    row: tuple[Any, ...] = await (await connection.execute(query, [id])).fetchone()
    return row


async def test_it_finds_its_tables_without_a_search_path(
    storage: PostgresStorage, connect: Connect, schema: str
) -> None:
    await storage.enqueue("q", [asked("first")])
    connection = await connect()
    await connection.execute("SET search_path = pg_catalog")
    statuses = [(await call(connection, schema, id))[0] for id in ("a", "a", "b")]
    await connection.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ")
    statuses += [(await call(connection, schema, id))[0] for id in ("c", "a")]
    await connection.commit()

    assert [None, "updated", None, "queued", "updated"] == statuses
    assert 4 == (await storage.counts(["q"]))["q"].waiting


async def test_it_reads_no_table_from_its_start_to_its_end(
    storage: PostgresStorage, connect: Connect, schema: str
) -> None:
    """For a table of one page, Postgres would plan a sequential scan, and keep it when the table grows."""
    await storage.enqueue("q", [asked("first")])
    connection = await connect()
    for number in range(8):
        await call(connection, schema, f"{number}")
        await call(connection, schema, f"{number}")

    assert (0,) == await (await connection.execute(SCANS, [schema])).fetchone()


async def test_a_new_job_is_logged_if_the_queue_logs_all(storage: PostgresStorage) -> None:
    await storage.configure("q", SettingsPatch(log_level="all"))
    await storage.enqueue("q", [asked("a")])
    events = (await storage.events("q")).events

    assert ("queued", "a") == [(event.kind, event.id) for _, event in events][-1]
