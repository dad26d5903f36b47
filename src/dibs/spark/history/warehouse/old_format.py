"""Warehouses of format 1: generations in folders, with hard links, and a symbolic link to the current one.

    generations/000000000012/state.json, runs/queue=mail/date=2026-11-20/part-….parquet
    current -> generations/000000000012
    events  runs  metrics  ids  live      links into current/

The next increment carries such a warehouse over: its manifest names the files where they are. No file is
copied.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec.structs import asdict

from dibs.errors import StorageDamaged
from dibs.spark.history.tables import TIME_COLUMNS, latest_time, row_count
from dibs.spark.history.warehouse.manifest import (
    TABLES,
    DataFile,
    Manifest,
    WarehouseState,
    decode_state,
)
from dibs.spark.history.warehouse.names import partition_of


def read_linked(root: Path) -> Manifest | None:
    """Return the current generation of a warehouse of format 1 as a manifest, or None without one.

    Raise StorageDamaged for a copy that was made without the symbolic links.
    """
    link, generations = root / "current", root / "generations"
    if not link.is_symlink():
        if generations.is_dir() and any(generations.iterdir()):
            raise StorageDamaged(
                f"the warehouse {root} has generations but no symbolic link `current`: it was copied without "
                "its links. Copy it again with its links, for example by cp -a or rsync -a"
            )
        return None
    folder = generations / link.readlink().name
    path = folder / "state.json"
    try:
        state = decode_state(path.read_bytes(), str(path), WarehouseState)
    except OSError as error:
        raise StorageDamaged(f"{path} is not a valid state of a warehouse: {error}") from error
    tables = {table: _files_below(root, folder / table, table) for table in TABLES}
    return Manifest(**{**asdict(state), "generation": int(folder.name), "tables": tables})


def _files_below(root: Path, folder: Path, table: str) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(
            path=file.relative_to(root).as_posix(),
            queue=partition_of(file).queue,
            date=partition_of(file).date,
            rows=row_count([file]),
            bytes=file.stat().st_size,
            latest=latest_time([file], *TIME_COLUMNS.get(table, ())),
        )
        for file in sorted(folder.glob("queue=*/date=*/*.parquet"))
    )


def remove_links(root: Path) -> None:
    """Remove the links of format 1, and its generations except the one that was carried over.

    Without the links, a reader by the old paths gets an error instead of rows that no longer change.
    """
    link = root / "current"
    if not link.is_symlink():
        return
    for folder in (root / "generations").iterdir():
        if folder.name != link.readlink().name:
            shutil.rmtree(folder, ignore_errors=True)
    for table in TABLES:
        if (root / table).is_symlink():
            (root / table).unlink()
    link.unlink()
