from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.spark.history import increments
from dibs.spark.history.warehouse import Warehouse
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.frames import moment
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import KEYS, rows, runs_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def test_increments_and_reruns_make_the_expected_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables do not depend on increments, compaction and reruns."""
    monkeypatch.setattr("dibs.spark.history.warehouse.MAINTAIN_EVERY", 2)
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage)
        await day.prepare(all_events_of="mail")
        await day.advance(250)
        await to_thread(increments.update, url, warehouse, engine="spark")
        await day.advance(80)
        done = await to_thread(increments.update, url, warehouse, engine="spark")
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert 1 == len(Warehouse(warehouse).events.rows().files)
    assert (0, ()) < (done.events, done.gaps) < (len(events), ())
    assert set(QUEUES) == set(done.starts) == {queue for queue, _ in rows(warehouse, "metrics")}
    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
    assert expected_history.runs(pairs) == runs_in(warehouse)

    before = {table: rows(warehouse, table, *key) for table, key in KEYS.items()}
    since, until = moment(day.now - 5_000_000), moment(day.now - 1_000_000)
    await to_thread(increments.rerun, warehouse, since, until, engine="spark")

    assert before == {table: rows(warehouse, table, *key) for table, key in KEYS.items()}
