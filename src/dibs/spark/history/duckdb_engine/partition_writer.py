"""The writer of a table's rows as Parquet files, one for each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dibs.spark.history.tables import PARTITION_COLUMNS, table_schema
from dibs.spark.history.warehouse.manifest import TablePartition
from dibs.spark.history.warehouse.names import partition_folder

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
