"""The pipeline killed with -9 in each of its phases, Spark and all: what is current stays whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.spark.history import increments
from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report.parquet import WarehouseReader
from dibs.storage.registry import open_storage
from tests.spark import expected_history as by_hand
from tests.spark.small_day import RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PHASES = ("live-read", "events", "live", "runs", "metrics", "ids")

CHILD = """
import sys
from pathlib import Path
from dibs.spark.history.increments import update
from dibs.spark.java import session
from tests.spark.conftest import SMALL
update(session(master="local[2]", config=SMALL), sys.argv[1], Path(sys.argv[2]))
"""


def killed_in(phase: str, url: str, warehouse: Path) -> None:
    """Start an increment in a process group of its own, and kill the group once the phase has begun."""
    words = [sys.executable, "-c", CHILD, url, str(warehouse)]
    child = subprocess.Popen(words, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 1200
    staged = warehouse / "staging" / phase
    while not (seen := staged.exists()) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    _, said = child.communicate()
    assert seen, said


@pytest.mark.spark
async def test_killed_in_any_phase_it_is_whole_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=5)
        await day.prepare(everything="mail")
        await day.live(60)
        await to_thread(increments.update, spark, url, warehouse)
        for phase in PHASES:
            before = Warehouse.existing(warehouse)
            kept = {
                queue: len(WarehouseReader(before).minutes(queue))
                for queue in WarehouseReader(before).queues()
            }
            await day.live(30)
            await to_thread(killed_in, phase, url, warehouse)
            now = Warehouse.existing(warehouse)

            assert now.folder == before.folder
            assert now.state == before.state
            assert kept == {queue: len(WarehouseReader(now).minutes(queue)) for queue in kept}
        await to_thread(increments.update, spark, url, warehouse)
        told, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in told]
    horizon = Warehouse.existing(warehouse).state.horizon

    assert by_hand.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert by_hand.ids(pairs) == rows(warehouse, "ids", "queue", "id")
