"""Increments that read only some queues of a warehouse: the other queues keep their rows."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path

from dibs.spark.history import increments
from dibs.spark.history.warehouse import Warehouse
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows


async def test_an_increment_of_one_queue_keeps_the_live_jobs_of_the_others(tmp_path: Path) -> None:
    """The minutes of the other queues go on with the jobs that were live at their last read."""
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage)
        await day.prepare()
        await day.advance(90)
        await to_thread(increments.update, url, warehouse)
        read = [(queue, event) for queue, _, event in await all_events(storage)]
        live = await all_slots(storage)
        await day.advance(40)
        await to_thread(increments.update, url, warehouse, [QUEUES[0]])
        read += [
            (queue, event)
            for queue, _, event in await all_events(storage)
            if queue == QUEUES[0] and (queue, event) not in read
        ]
        live = [slot for slot in live if slot[0] == QUEUES[1]] + [
            slot for slot in await all_slots(storage) if slot[0] == QUEUES[0]
        ]
        horizon = Warehouse(warehouse).state.horizon

        assert expected_history.metrics(read, live, horizon) == rows(warehouse, "metrics", "queue", "minute")

        await to_thread(increments.update, url, warehouse)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
