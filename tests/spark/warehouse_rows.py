"""The tables of a warehouse as dictionaries, and warehouses made of given rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from dibs.spark.history.reading import table_dataset
from dibs.spark.history.tables import staged_rows, table_schema
from dibs.spark.history.warehouse import State, Warehouse
from tests.spark.frames import ms

KEYS = {
    "events": ("queue", "offset"),
    "runs": ("queue", "offset"),
    "metrics": ("queue", "minute"),
    "ids": ("queue", "id"),
    "live": ("queue", "id", "first"),
}


def rows(warehouse: str | Path, table: str, *key: str) -> dict[Any, dict[str, Any]]:
    """Return a table by key, with times as ms. Without a key, by the key of the table."""
    found: dict[Any, dict[str, Any]] = {}
    for row in table_dataset(warehouse, table).to_table().to_pylist():
        values = {name: ms(v) if isinstance(v, datetime) else v for name, v in row.items()}
        row_key = tuple(values.pop(name) for name in key or KEYS[table])
        assert row_key not in found
        found[row_key] = values
    return found


def runs_in(warehouse: str | Path) -> set[tuple[Any, ...]]:
    columns = ("id", "attempt", "fence", "end", "wait_ms", "run_ms", "holder")
    return {(queue, *(row[name] for name in columns)) for (queue, _), row in rows(warehouse, "runs").items()}


def add_rows(
    warehouse: str | Path,
    state: State,
    *,
    events: Sequence[dict[str, Any]] = (),
    metrics: Sequence[dict[str, Any]] = (),
) -> Warehouse:
    """Add rows to a warehouse, as an increment does. Columns that are missing are null."""
    tables = Warehouse(warehouse, create=True)
    state = replace(state, increment=tables.events.state.increment + 1)
    with TemporaryDirectory() as name:
        for table, its in (("events-read", events), ("metrics", metrics)):
            folder = Path(name, table)
            folder.mkdir()
            pq.write_table(pa.Table.from_pylist([*its], table_schema(table)), folder / "part-0.parquet")
        new = staged_rows("events-read", Path(name, "events-read"))
        tables.events.append(state, new, increment=state.increment)
        tables.metrics.append(state, staged_rows("metrics", Path(name, "metrics")))
    return tables
