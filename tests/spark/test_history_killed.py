"""The pipeline killed with SIGKILL in each of its phases, with Spark: the current generation stays
complete.
"""

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
from tests.spark import expected_history
from tests.spark.random_day import RandomDay
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
    """Start an increment in a new process group, and kill the group after the phase has begun."""
    command = [sys.executable, "-c", CHILD, url, str(warehouse)]
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 1200
    while (
        not (seen := any(warehouse.glob(f"staging/*/{phase}")))
        and child.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.001)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    _, errors = child.communicate()
    assert seen, errors


@pytest.mark.spark
async def test_an_increment_killed_in_any_phase_changes_nothing_and_is_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=5)
        await day.prepare(all_events_of="mail")
        await day.advance(60)
        await to_thread(increments.update, spark, url, warehouse)
        for phase in PHASES:
            before = Warehouse.existing(warehouse)
            kept = {
                queue: len(WarehouseReader(before).minutes(queue))
                for queue in WarehouseReader(before).queues()
            }
            await day.advance(30)
            await to_thread(killed_in, phase, url, warehouse)
            now = Warehouse.existing(warehouse)

            assert now.folder == before.folder
            assert now.state == before.state
            assert kept == {queue: len(WarehouseReader(now).minutes(queue)) for queue in kept}
        await to_thread(increments.update, spark, url, warehouse)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse.existing(warehouse).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
