"""The engine on DuckDB: the computations of an increment as SQL on Parquet files, in this process.

The statements are in queries/*.sql. They read views of the files that Python names, and the variables
`before`, `horizon` and `until`. Times are integers in ms in all statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import frozen

from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.storage_reads import ReadPlan, Row, event_batches, live_record_pages, live_rows
from dibs.spark.history.tables import LIVE_READ_COLUMNS, MINUTE, PARTITION_COLUMNS, SORT_COLUMN, table_schema
from dibs.spark.history.warehouse.manifest import TablePartition, folder_name, partition_folder

if TYPE_CHECKING:
    from dibs.spark.history.storage_reads import ReadPlan
    from dibs.spark.history.warehouse.draft import WarehouseDraft

#: Rows of a row group. The writer holds this many rows of each open partition.
ROW_GROUP_ROWS: Final = 1 << 16
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


class PartitionWriter:
    """Writes batches of a table's rows below a folder; rows of a partition may come in any order."""

    def __init__(self, table: str, folder: Path) -> None:
        self._folder = folder
        self._schema: pa.Schema = table_schema(table)
        self._inner: pa.Schema = pa.schema(
            [field for field in self._schema if field.name not in PARTITION_COLUMNS]
        )
        self._open: dict[TablePartition, _PartitionFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch. Columns of times may be timestamps, or integers in ms."""
        rows = convert_times(batch, self._schema)
        for queue, date in _distinct(rows):
            is_its = pc.and_(pc.equal(rows.column("queue"), queue), pc.equal(rows.column("date"), date))
            partition = TablePartition(str(queue), date.as_py().isoformat())
            part = rows.filter(is_its).select(self._inner.names)
            self._file(partition).write(part)

    def close_files(self) -> None:
        """Close all files. Later rows of the same partitions come into new files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, partition: TablePartition) -> _PartitionFile:
        if partition not in self._open:
            folder = self._folder / partition_folder(partition)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"part-{len([*folder.iterdir()])}.parquet"
            self._open[partition] = _PartitionFile(path, self._inner)
        return self._open[partition]


class _PartitionFile:
    """An open Parquet file, and the rows of its next row group."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema)
        self._rows: list[pa.Table] = []
        self._held = 0

    def write(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self._held += rows.num_rows
        if self._held >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._rows), row_group_size=ROW_GROUP_ROWS)
        self._rows, self._held = [], 0


@contextmanager
def partition_writer(table: str, folder: Path) -> Iterator[PartitionWriter]:
    """Yield a writer of a table's rows, and close its files afterwards."""
    writer = PartitionWriter(table, folder)
    try:
        yield writer
    finally:
        writer.close_files()


def write_sorted(table: str, folder: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches that are sorted by partition; only the files of one batch are open at once."""
    with partition_writer(table, folder) as writer:
        last = None
        for batch in batches:
            if not batch.num_rows:
                continue
            first = (batch.column("queue")[0].as_py(), batch.column("date")[0].as_py())
            if first != last:
                writer.close_files()
            writer.write(batch)
            last = (batch.column("queue")[-1].as_py(), batch.column("date")[-1].as_py())


def convert_times(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a batch with the columns of a schema, in its order."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pa.types.is_timestamp(field.type) and pa.types.is_integer(column.type):
            column = column.cast(_MILLISECONDS)
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _distinct(rows: pa.Table) -> Iterator[tuple[pa.Scalar, pa.Scalar]]:
    parts = rows.select(PARTITION_COLUMNS).group_by(list(PARTITION_COLUMNS), use_threads=False).aggregate([])
    yield from zip(parts.column("queue"), parts.column("date"), strict=True)


def read_events(url: str, plan: ReadPlan, folder: Path) -> None:
    """Write the events of a plan below a folder, one page after the other."""
    with StorageConnection(url) as connection, partition_writer("events", folder) as writer:
        for log in plan.ranges:
            for batch in event_batches(connection, log):
                writer.write(_with_date(batch, "at"))
            writer.close_files()


def read_live(url: str, queues: Sequence[str], folder: Path) -> None:
    """Write the live jobs of a storage as one file; without `queues`, of all queues."""
    schema = table_schema("live-read")
    folder.mkdir(parents=True)
    with StorageConnection(url) as connection, pq.ParquetWriter(folder / "part-0.parquet", schema) as writer:
        levels = {info.name: info.settings.log_level for info in connection.run(connection.storage.queues())}
        for queue in queues or sorted(levels):
            pages = live_record_pages(connection, queue, is_logged=levels.get(queue, "off") != "off")
            name = folder_name(queue)
            for seen, records in enumerate(pages):
                if rows := [row for record in records for row in live_rows(name, record, seen)]:
                    writer.write_table(convert_times(_with_date(_live_batch(rows), "enqueued_at"), schema))


def _live_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    names = ("queue", *LIVE_READ_COLUMNS)
    kinds = dict.fromkeys(("queue", "id", "state", "key", "flow"), pa.string())
    columns = [
        pa.array(values, kinds.get(name, pa.int64()))
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _with_date(batch: pa.RecordBatch, time: str) -> pa.RecordBatch:
    """Return a batch with the column `date`: the day in UTC of a column of times."""
    times = batch.column(time)
    if pa.types.is_integer(times.type):
        times = times.cast(pa.timestamp("ms"))
    else:
        times = times.cast(pa.timestamp("us"))
    return batch.append_column("date", pc.floor_temporal(times, unit="day").cast(pa.date32()))


#: Memory of DuckDB. Larger sorts and sums are spilled to the folder of the attempt.
MEMORY_LIMIT: Final = "512MB"


@contextmanager
def open_duckdb(draft: WarehouseDraft) -> Iterator[DuckDBEngine]:
    """Yield the engine, with a database in memory that spills to the folder of the draft."""
    settings: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(draft.staging("spill")),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
    }
    with duckdb.connect(config=settings) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(_query("macros"))
        yield DuckDBEngine(database, draft)


@frozen
class DuckDBEngine:
    """The computations of an increment on DuckDB; `Engine` documents the methods."""

    _database: duckdb.DuckDBPyConnection
    _draft: WarehouseDraft

    @property
    def tasks(self) -> int:
        """One: this process reads the logs."""
        return 1

    def read_live(self, url: str, queues: Sequence[str]) -> None:
        """Write the live jobs of a storage under the name `live-read`."""
        folder = self._draft.staging("live-read")
        run_in_thread(lambda: read_live(url, queues, folder))

    def read_events(self, url: str, plan: ReadPlan) -> None:
        """Write the events of a plan under the name `events`."""
        folder = self._draft.staging("events")
        run_in_thread(lambda: read_events(url, plan, folder))

    def write_live(self, read: Sequence[Path], new: Sequence[Path]) -> None:
        """Write `live`: the jobs in `read`, except jobs that ended by the events in `new`."""
        self._view("events", new)
        self._view("live_read", read, table="live-read", is_partitioned=False)
        self._write("live", "live")

    def first_changed_minutes(
        self, new: Sequence[Path], live: Sequence[Path], old_live: Sequence[Path], before: int, now: int
    ) -> dict[str, int]:
        """Return queue -> first minute (ms) whose metrics have changed, for the queues with changes."""
        self._view("events", new)
        self._view("live", live)
        self._view("old_live", old_live, table="live")
        self._set(before=before, horizon=now)
        return {queue: at - at % MINUTE for queue, at in self._database.sql(_query("changed")).fetchall()}

    def write_runs(self, events: Sequence[Path]) -> None:
        """Write `runs`: one row for each attempt that ended by these events."""
        self._view("events", events)
        self._write("runs", "runs")

    def write_metrics(
        self,
        events: Sequence[Path],
        live: Sequence[Path],
        old: Sequence[Path],
        starts: Mapping[str, int],
        horizon: int,
        end: int | None,
    ) -> None:
        """Write `metrics`: of each queue in `starts`, its minutes from the start (ms) up to `end`."""
        self._view("events", events)
        self._view("live", live)
        self._view("old_metrics", old, table="metrics")
        self._database.register(
            "starts", pa.table({"queue": [*starts], "start": pa.array(starts.values(), pa.int64())})
        )
        self._database.execute(
            "CREATE OR REPLACE VIEW late_events AS SELECT events.* FROM events "
            'JOIN starts ON starts.queue = events.queue WHERE epoch_ms(events."at") >= start'
        )
        self._set(horizon=horizon, until=end)
        self._write("metrics", "metrics")

    def write_ids(self, events: Sequence[Path]) -> None:
        """Write `ids`: one row for each id that ended by these events, on the day of its latest end."""
        self._view("events", events)
        self._write("ids", "ids")

    def merge_files(self, table: str, files: Sequence[Path], name: str) -> None:
        """Write the rows of several files of a table under `name`, as one file for each partition."""
        self._view("merged", files, table=table)
        self._write_rows(table, _query("ids_merged") if table == "ids" else "FROM merged", name)

    def _view(
        self, name: str, files: Sequence[Path], *, table: str = "", is_partitioned: bool = True
    ) -> None:
        """Define the view `name` of files of a table. Without files, the view is empty."""
        self._database.execute(f"DROP VIEW IF EXISTS {name}")
        if not files:
            self._database.register(name, table_schema(table or name).empty_table())
            return
        self._set(**{f"files_{name}": [str(file) for file in files]})
        hive = "true, hive_types={'queue': VARCHAR, 'date': DATE}" if is_partitioned else "false"
        self._database.execute(
            f"CREATE TEMP VIEW {name} AS FROM read_parquet("
            f"getvariable('files_{name}'), hive_partitioning={hive})"
        )

    def _set(self, **variables: Any) -> None:
        for name, value in variables.items():
            self._database.execute(f"SET VARIABLE {name} = ?", [value])

    def _write(self, table: str, query: str) -> None:
        self._write_rows(table, _query(query), table)

    def _write_rows(self, table: str, query: str, name: str) -> None:
        """Write the rows of a query below `name`, sorted by partition and by the table's sort column."""
        order = ", ".join(f'"{column}"' for column in (*PARTITION_COLUMNS, SORT_COLUMN.get(table)) if column)
        rows = self._database.sql(f"FROM ({query}) ORDER BY {order}")
        write_sorted(table, self._draft.staging(name), rows.to_arrow_reader(ROW_GROUP_ROWS))


@cache
def _query(name: str) -> str:
    """Return the statement in queries/<name>.sql."""
    return (package_files(__package__) / "queries" / f"{name}.sql").read_text("utf-8")
