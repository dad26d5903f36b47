"""Warehouses with files of few rows, written without an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from dibs.spark.history.warehouse.draft import WarehouseDraft
from dibs.spark.history.warehouse.manifest import Manifest, TablePartition, partition_folder
from dibs.spark.history.warehouse.warehouse import Warehouse

MAIL = TablePartition("mail", "2026-11-20")
NEXT = TablePartition("mail", "2026-11-21")


def stage(draft: WarehouseDraft, name: str, *parts: TablePartition, rows: int = 1) -> str:
    """Stage one file for each partition under a name, and return the name."""
    for part in parts:
        folder = draft.staging(name) / partition_folder(part)
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": [f"id {number}" for number in range(rows)], "attempts": [*range(rows)]})
        pq.write_table(table, folder / f"part-{os.urandom(4).hex()}.parquet")
        (folder / "_SUCCESS").touch()
    return name


def add(location: str | Path, *parts: TablePartition) -> Manifest:
    """Add one file to each partition of `runs`, and increase the horizon by one."""
    with Warehouse(location).open_draft() as draft:
        draft.add("runs", stage(draft, "runs", *parts))
        return draft.commit(replace(draft.before, horizon=draft.before.horizon + 1))


def counts(location: str | Path) -> dict[TablePartition, int]:
    """Return the number of files of each partition of `runs`. Each file exists in the store."""
    warehouse = Warehouse.existing(location)
    stored = warehouse.store.list_files("data").keys() | warehouse.store.list_files("generations").keys()
    assert warehouse.manifest.paths() <= stored
    return {part: len(files) for part, files in warehouse.files("runs").items()}
