"""The events and the live jobs of a storage, read page by page into Parquet files of an increment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dibs.spark.connection import StorageConnection
from dibs.spark.history.duckdb_engine.partition_writer import convert_times, partition_writer
from dibs.spark.history.live_records import Row, live_record_pages, live_rows
from dibs.spark.history.log_plan import ReadPlan
from dibs.spark.history.logged_jobs import event_batches
from dibs.spark.history.tables import LIVE_READ_COLUMNS, table_schema
from dibs.spark.history.warehouse.names import folder_name


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
