"""The tables of the history: their columns, and the Parquet files from which a statement reads rows.

`events`, `live` and `metrics` are tables of Delta Lake. `runs` and `ids` are views of `events`, which a
reader computes by their definitions in queries/. docs/reference/warehouse.md explains each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.dataset as pads
from attrs import field, frozen

from dibs.model.events import AttemptKind
from dibs.spark.schemas import arrow_schema

#: Tables that an increment writes, in the order of its commits.
STORED_TABLES: Final = ("events", "live", "metrics")
#: Definitions that a reader computes from `events`.
VIEWS: Final = ("runs", "ids")
TABLES: Final = ("events", "runs", "metrics", "ids", "live")
#: Kinds of events that end an attempt, in the order of the contract.
ATTEMPT_ENDS: Final[tuple[str, ...]] = get_args(AttemptKind)
MINUTE: Final = 60_000
#: Percentiles of waits and run times.
PERCENTILES: Final = (50, 95, 99)

#: Column -> type. Counts are exact; `active`, `waiting` and `due` are averages over time.
METRICS_COLUMNS: Final = {
    "queue": "string",
    "minute": "timestamp",
    "arrivals": "bigint",
    "enqueues": "bigint",
    "claims": "bigint",
    **dict.fromkeys(ATTEMPT_ENDS, "bigint"),
    "attempts": "bigint",
    "retry_rate": "double",
    "stall_rate": "double",
    "timeout_rate": "double",
    "wait_ms": "bigint",
    "run_ms": "bigint",
    **{f"wait_p{p}_ms": "bigint" for p in PERCENTILES},
    **{f"run_p{p}_ms": "bigint" for p in PERCENTILES},
    "holders": "bigint",
    "backlog": "bigint",
    "backlog_due": "bigint",
    "waiting": "double",
    "due": "double",
    "active": "double",
    "active_peak": "bigint",
    "utilisation": "double",
}
IDS_COLUMNS: Final = {
    "queue": "string",
    "id": "string",
    "attempts": "bigint",
    **dict.fromkeys(ATTEMPT_ENDS, "bigint"),
    "merged": "bigint",
    "wait_ms": "bigint",
    "longest_wait_ms": "bigint",
    "run_ms": "bigint",
    "longest_run_ms": "bigint",
    "first_end_at": "timestamp",
    "last_end_at": "timestamp",
}
#: Columns of `events` and `runs` that no log has. storage_reads.py reads them from the records of the jobs.
#: `attributes` are those that the increment was asked for.
JOB_COLUMNS: Final = {"key": "string", "flow": "string", "attributes": "texts"}
#: The number of the increment that collected an event.
INCREMENT_COLUMN: Final = {"increment": "bigint"}
#: Columns of the live jobs at the last read of the storage.
LIVE_COLUMNS: Final = {
    "queue": "string",
    "id": "string",
    "state": "string",
    "first": "bigint",
    "fence": "bigint",
    "enqueued_at": "timestamp",
    "due_at": "timestamp",
    "claimed_at": "timestamp",
    "key": "string",
    "flow": "string",
    "memo_bytes": "bigint",
}
#: Columns of the live jobs while they are read. An id may be read twice; the row with the highest `seen`
#: counts.
LIVE_READ_COLUMNS: Final = {**LIVE_COLUMNS, "seen": "bigint"}
_OWN_COLUMNS: Final = {
    "metrics": METRICS_COLUMNS,
    "ids": IDS_COLUMNS,
    "live": LIVE_COLUMNS,
    "live-read": LIVE_READ_COLUMNS,
}
#: Columns that a table has beside those of the table with this name in the data source `dibs`.
_ADDED_COLUMNS: Final = {
    "events": {**JOB_COLUMNS, **INCREMENT_COLUMN},
    "events-read": JOB_COLUMNS,
    "runs": JOB_COLUMNS,
}
_ARROW_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "texts": pa.map_(pa.string(), pa.string()),
}


def table_schema(table: str) -> pa.Schema:
    if own := _OWN_COLUMNS.get(table):
        return pa.schema(_arrow_fields(own))
    logged = [column.with_nullable(nullable=True) for column in arrow_schema(table.removesuffix("-read"))]
    return pa.schema([*logged, *_arrow_fields(_ADDED_COLUMNS[table])])


def numeric_columns(table: str) -> dict[str, str]:
    """Return the columns of a table that are numbers -> their types in SQL."""
    kinds = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}
    return {column.name: kinds[column.type] for column in table_schema(table) if column.type in kinds}


def _arrow_fields(columns: Mapping[str, str]) -> list[pa.Field]:
    return [pa.field(name, _ARROW_TYPES[kind]) for name, kind in columns.items()]


@frozen
class TableRows:
    """Rows of a table: those of some Parquet files that satisfy a condition."""

    table: str
    #: Local folder, or URL of an object store.
    root: str = ""
    #: Paths of the files below `root`.
    paths: Sequence[str] = ()
    #: Size of all files together.
    bytes: int = 0
    #: A condition in SQL, in which the rows are `t`, or "" for all rows of the files.
    where: str = ""
    #: Options of an object store, as for deltalake.
    options: Mapping[str, str] = field(factory=dict)

    @property
    def is_remote(self) -> bool:
        """True for files that only pyarrow opens, and no engine itself."""
        return "://" in self.root

    @property
    def files(self) -> list[str]:
        """Full paths or URLs of the files."""
        return [f"{self.root}/{path}" for path in self.paths]

    def dataset(self) -> pads.Dataset:
        """Return the files as a dataset of Arrow, without regard to `where`."""
        schema = table_schema(self.table)
        if not self.paths:
            return pads.dataset(schema.empty_table())
        if not self.is_remote:
            return pads.dataset(self.files, schema=schema, format="parquet")
        return pads.dataset([*self.paths], schema=schema, format="parquet", filesystem=self._filesystem())

    def _filesystem(self) -> Any:
        # Executors need these packages for remote files only.
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415
        from pyarrow.fs import PyFileSystem  # noqa: PLC0415

        return PyFileSystem(DeltaStorageHandler(self.root, dict(self.options)))


def staged_rows(table: str, folder: Path) -> TableRows:
    """Return the rows of the Parquet files in a folder."""
    files = sorted(folder.glob("*.parquet"))
    size = sum(file.stat().st_size for file in files)
    return TableRows(table, str(folder), [file.name for file in files], size)


#: Name in a statement -> its rows.
Sources = Mapping[str, TableRows | pa.Table]
