"""The tables of a warehouse as dictionaries, for comparison with the expected history."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from dibs.spark.history.tables import merge_ids
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.figures.parquet import WarehouseReader
from tests.spark.frames import ms

KEYS = {
    "events": ("queue", "offset"),
    "runs": ("queue", "offset"),
    "metrics": ("queue", "minute"),
    "ids": ("queue", "id"),
    "live": ("queue", "id", "first"),
}


def rows(warehouse: str | Path, table: str, *key: str) -> dict[Any, dict[str, Any]]:
    """Return a table by key, with times as ms and full names of queues.

    It is read without Spark, which is faster.
    """
    found: dict[Any, dict[str, Any]] = {}
    tables = WarehouseReader(Warehouse.existing(warehouse))
    for queue in tables.queues():
        for row in _rows_of(tables, table, queue):
            values = {name: ms(v) if isinstance(v, datetime) else v for name, v in row.items()}
            values["queue"] = queue
            row_key = tuple(values.pop(name) for name in key)
            assert row_key not in found
            found[row_key] = values
    return found


def _rows_of(tables: WarehouseReader, table: str, queue: str) -> list[dict[str, Any]]:
    batches = [*tables.batches(table, queue)]
    if table != "ids" or not batches:
        return [row for batch in batches for row in batch.to_pylist()]
    # Spark writes columns without null values as such, and DuckDB does not.
    parts = (pa.Table.from_batches([batch]) for batch in batches)
    merged = merge_ids(pa.concat_tables(parts, promote_options="permissive"))
    found: list[dict[str, Any]] = merged.to_pylist()
    return found


def runs_in(warehouse: str | Path) -> set[tuple[Any, ...]]:
    columns = ("id", "attempt", "fence", "end", "wait_ms", "run_ms", "holder")
    runs = rows(warehouse, "runs", "queue", "offset")
    return {(queue, *(row[name] for name in columns)) for (queue, _), row in runs.items()}
