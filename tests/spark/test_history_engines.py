"""Both engines write the same values, and those of the plain computation in expected_history.py."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.wakeup import FLOW_ATTRIBUTE
from dibs.spark.history import increments
from dibs.spark.history.warehouse import Warehouse
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.random_day import RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import KEYS, rows, runs_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tables(warehouse: Path) -> dict[str, dict[Any, dict[str, Any]]]:
    return {table: rows(warehouse, table, *key) for table, key in KEYS.items()}


@pytest.mark.parametrize("seed", range(3))
async def test_increments_of_duckdb_make_the_expected_tables(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four increments of random sizes, each compared with a count of the whole history."""
    monkeypatch.setattr("dibs.spark.history.warehouse.MAINTAIN_EVERY", 2)
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=seed)
        await day.prepare(all_events_of="mail")
        for _ in range(4):
            await day.advance(day.random.randrange(120))
            await to_thread(increments.update, url, warehouse, engine="duckdb")
            events, live = await all_events(storage), await all_slots(storage)
            pairs = [(queue, event) for queue, _, event in events]
            horizon = Warehouse(warehouse).state.horizon

            assert expected_history.metrics(pairs, live, horizon) == rows(
                warehouse, "metrics", "queue", "minute"
            )
            assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
            assert expected_history.runs(pairs) == runs_in(warehouse)


async def add_job_with_a_memo(storage: Storage, now: int) -> None:
    """Add a job with a key, a flow and a memo, which waits for a second run, and a successor of it."""
    data = JobData(key="ada", attributes={FLOW_ATTRIBUTE: b'"flow 1"'})
    requests = [EnqueueRequest(job=NewJob(id="step", data=data))]
    await storage.enqueue("flow", requests, now=now)
    lease = (await storage.grant(["flow"], 240_000, "worker", now=now)).lease
    [job] = (await storage.claim("flow", lease, 1, now=now)).jobs
    assert job.run
    await storage.report("flow", "step", job.run.fence, memo=b"12345", now=now)
    await storage.enqueue("flow", requests, now=now)


async def test_both_engines_write_equal_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Each engine continues what the other began, and both agree with an engine that worked alone."""
    url, alone, mixed = f"file:{tmp_path}/jobs", tmp_path / "alone", tmp_path / "mixed"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=9)
        await day.prepare(all_events_of="mail")
        await add_job_with_a_memo(storage, day.now)
        for engine in ("spark", "duckdb", "spark"):
            await day.advance(70)
            await to_thread(increments.update, url, alone, engine="duckdb")
            await to_thread(increments.update, url, mixed, engine=engine)

            assert tables(alone) == tables(mixed)
    live = rows(mixed, "live", "queue", "id", "state")
    columns = ("key", "flow", "memo_bytes")
    assert ["ada", "flow 1", 5] == [live["flow", "step", "active"][name] for name in columns]
    assert ["ada", "flow 1", None] == [live["flow", "step", "blocked"][name] for name in columns]
    await to_thread(increments.rerun, mixed, engine="spark")
    await to_thread(increments.rerun, alone, engine="duckdb")

    assert tables(alone) == tables(mixed)
