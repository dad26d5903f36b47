"""The tables of a warehouse: columns, partitions, and how their files are read and merged.

`events` and `runs` have the columns of the data source (schemas.py) and JOB_COLUMNS. Every table is
partitioned by queue and by `date`, the day in UTC. docs/reference/warehouse.md explains each column.

An increment adds a row for each id of its events, and never reads the rows of earlier increments: that would
cost as much as all ids of the history. So a reader merges the rows of an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from dibs.model.events import AttemptKind
from dibs.spark.history.warehouse.store import Store
from dibs.spark.schemas import arrow_schema, struct_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

#: Kinds of events that end an attempt, in the order of the contract.
ATTEMPT_ENDS: Final[tuple[str, ...]] = get_args(AttemptKind)
#: Kinds of events that end a job. After the other ends the job waits again.
JOB_ENDS: Final = ("completed", "failed", "cancelled")
#: Kinds of events of accepted enqueues; only log level `all` records them.
ENQUEUE_EVENTS: Final = ("queued", "updated", "blocked")
#: Tables that only get new rows, each with an offset. An increment replaces rows of the others.
APPENDED_TABLES: Final = ("events", "runs")
#: Tables to which an increment adds files. Their small files are merged.
GROWING_TABLES: Final = (*APPENDED_TABLES, "ids")
PARTITION_COLUMNS: Final = ("queue", "date")
MINUTE: Final = 60_000
#: Columns with the times that count for the horizon, and by which files are skipped.
TIME_COLUMNS: Final[dict[str, tuple[str, ...]]] = {"events": ("at",), "live": ("enqueued_at", "claimed_at")}
#: Column that the rows of a table are sorted by, so that a read of a time range skips other row groups.
SORT_COLUMN: Final = {"events": "at", "runs": "finished_at"}
#: Percentiles of waits and run times.
PERCENTILES: Final = (50, 95, 99)

#: Column -> type in Spark's DDL. Counts are exact; `active`, `waiting` and `due` are averages over time.
METRICS_COLUMNS: Final = {
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
#: Column of `ids` -> the function that merges its values in two rows of one id.
IDS_MERGES: Final = {
    **dict.fromkeys((name for name, kind in IDS_COLUMNS.items() if kind == "bigint"), "sum"),
    **dict.fromkeys(("longest_wait_ms", "longest_run_ms", "last_end_at"), "max"),
    "first_end_at": "min",
}
#: Columns of `events` and `runs` that no log has. storage_reads.py reads them from the records of the jobs.
JOB_COLUMNS: Final = {"key": "string", "flow": "string"}
#: Columns of the live jobs at the last read of the storage.
LIVE_COLUMNS: Final = {
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
_WAREHOUSE_COLUMNS: Final = {
    "metrics": METRICS_COLUMNS,
    "ids": IDS_COLUMNS,
    "live": LIVE_COLUMNS,
    "live-read": LIVE_READ_COLUMNS,
}


_ARROW_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def schema(table: str) -> StructType:
    """Return the schema of a table with its partition columns last, as Spark reads it."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - the names are used without Spark

    if own := _WAREHOUSE_COLUMNS.get(table):
        inner = _parse_ddl(_to_ddl(own))
    else:
        logged = [field for field in struct_type(table.removesuffix("-read")) if field.name != "queue"]
        inner = [*logged, *_parse_ddl(_to_ddl(JOB_COLUMNS))]
    return StructType([*inner, *_parse_ddl("queue string, date date")])


def table_schema(table: str) -> pa.Schema:
    """Return the schema of a table with its partition columns last, as Arrow reads it."""
    if own := _WAREHOUSE_COLUMNS.get(table):
        inner = _arrow_fields(own)
    else:
        logged = [
            field.with_nullable(nullable=True)
            for field in arrow_schema(table.removesuffix("-read"))
            if field.name != "queue"
        ]
        inner = [*logged, *_arrow_fields(JOB_COLUMNS)]
    return pa.schema([*inner, pa.field("queue", pa.string()), pa.field("date", pa.date32())])


def numeric_columns(table: str) -> dict[str, str]:
    """Return the columns of a table that are numbers -> their types in SQL."""
    kinds = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}
    return {field.name: kinds[field.type] for field in table_schema(table) if field.type in kinds}


def base_folder(file: Path) -> Path:
    """Return the folder below which the names of folders are values of the partition columns."""
    return file.parents[2] if file.parent.name.startswith("date=") else file.parent


def _arrow_fields(columns: Mapping[str, str]) -> list[pa.Field]:
    return [pa.field(name, _ARROW_TYPES[kind]) for name, kind in columns.items()]


def _to_ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _parse_ddl(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    return cast("StructType", StructType.fromDDL(ddl)).fields


class TableFiles(NamedTuple):
    """Parquet files with rows of a table."""

    table: str
    files: Sequence[Path]


#: Name in a statement -> its rows.
Sources = Mapping[str, TableFiles | pa.Table]


def row_count(files: Iterable[Path]) -> int:
    """Return the number of rows in Parquet files, from their footers."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def latest_time(files: Iterable[Path], *columns: str) -> int:
    """Return the latest time (ms) in these timestamp columns, or 0.

    Only the footers of the files are read.
    """
    return max((at for file in files for at in _column_maxima(file, columns)), default=0)


def _column_maxima(file: Path, columns: tuple[str, ...]) -> Iterator[int]:
    metadata = pq.read_metadata(file)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            # A column that holds only nulls has no statistics.
            if column.path_in_schema in columns and (stats := column.statistics) and stats.has_min_max:
                yield stats.max_raw // 1000


def dataset_of(store: Store, table: str, files: list[str]) -> pads.Dataset:
    """Return some files of a table as a dataset of Arrow."""
    schema = table_schema(table)
    folders = pa.schema([schema.field("queue"), schema.field("date")])
    paths, filesystem = store.dataset_paths(files)
    return pads.dataset(
        paths,
        schema=schema,
        format="parquet",
        partitioning=pads.partitioning(folders, flavor="hive"),
        filesystem=filesystem,
    )


def merge_ids(rows: pa.Table) -> pa.Table:
    """Return one row for each id of rows of `ids`, with the same columns, which may be only some of `ids`.

    Ids of different queues are different if the rows have the column `queue`.
    """
    names = rows.column_names
    keys = [name for name in ("queue", "id") if name in names]
    merges = [(name, how) for name, how in IDS_MERGES.items() if name in names]
    found = rows.group_by(keys, use_threads=False).aggregate(merges)
    merged = found.select([*keys, *(f"{name}_{how}" for name, how in merges)])
    merged = merged.rename_columns([*keys, *(name for name, _ in merges)])
    if "date" in names:
        merged = merged.append_column("date", utc_days(merged.column("last_end_at")))
    return merged.select(names)


def utc_days(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the days in UTC of timestamps."""
    return pc.floor_temporal(times.cast(pa.timestamp("us")), unit="day").cast(pa.date32())
