"""The tables of a warehouse as dictionaries, to be compared with what was counted by hand."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report.parquet import WarehouseReader
from tests.spark.frames import ms


def rows(warehouse: Path, table: str, *key: str) -> dict[Any, dict[str, Any]]:
    """A table by key, times as ms, queues by their own names; read without Spark, to be quick."""
    found: dict[Any, dict[str, Any]] = {}
    tables = WarehouseReader(Warehouse.existing(warehouse))
    for queue in tables.queues():
        for row in (row for batch in tables.batches(table, queue) for row in batch.to_pylist()):
            told = {name: ms(v) if isinstance(v, datetime) else v for name, v in row.items()}
            told["queue"] = queue
            place = tuple(told.pop(name) for name in key)
            assert place not in found
            found[place] = told
    return found
