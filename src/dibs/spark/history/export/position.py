"""The position of an export: the generation and the offsets up to which a table has the rows of a warehouse.

`events` and `runs` only get new rows, and an export appends those behind the position. The other tables
replace rows, and an export of a newer generation replaces the whole table.

The commit that changes rows also holds the position behind them. So a kill leaves both or none of them, and
the next export continues at the position that it finds in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import frozen
from msgspec import Struct

from dibs.errors import Refused, StorageDamaged
from dibs.spark.history.tables import APPENDED_TABLES, merge_ids, table_schema
from dibs.spark.history.warehouse.manifest import DataFile, TablePartition
from dibs.spark.history.warehouse.warehouse import Warehouse

ExportedTable = Literal["events", "runs", "metrics", "ids", "live"]
#: Name of the position in the metadata of a commit, or in the properties of a table.
POSITION_KEY: Final = "dibs-position"
#: Rows in memory at once.
BATCH_ROWS: Final = 1 << 16


class Position(Struct, frozen=True, kw_only=True):
    """The part of a warehouse that a table has."""

    #: URL of the storage, without secrets.
    source: str
    #: Generation of the warehouse.
    generation: int
    #: Queue -> offset of the last event.
    offsets: dict[str, str]


@frozen(kw_only=True)
class Export:
    """The result of one export."""

    #: Number of rows that it wrote: new rows of `events` and `runs`, all rows of another table, and 0 if the
    #: table had this generation already.
    rows: int
    #: Generation of the warehouse whose rows the table has now.
    generation: int


@frozen
class ExportSource:
    """A table of the current generation of a warehouse, to be exported."""

    warehouse: Warehouse
    table: ExportedTable

    @property
    def schema(self) -> pa.Schema:
        """The columns of the exported table."""
        return table_schema(self.table)

    @property
    def position(self) -> Position:
        """The position of a table that has all rows of this generation."""
        manifest = self.warehouse.manifest
        return Position(
            source=manifest.source, generation=manifest.generation, offsets=dict(manifest.offsets)
        )

    @property
    def is_appended(self) -> bool:
        """True for a table that only gets new rows, so that an export adds them."""
        return self.table in APPENDED_TABLES

    def is_done(self, done: Position | None) -> bool:
        """Return whether a table at this position has all rows of this generation."""
        return done is not None and done.generation == self.position.generation

    def check_columns(self, names: Iterable[str], target: str) -> None:
        """Raise Refused if the target of the export lacks columns. `names` are the columns that it has."""
        missing = [name for name in self.schema.names if name not in {*names}]
        if missing:
            raise Refused(
                f"the table {target} has no column {', '.join(missing)}, so it is no table of "
                f"{self.table}; choose another target",
                field="target",
            )

    def check(self, done: Position | None, *, has_rows: bool) -> None:
        """Raise Refused if a table at this position may have other rows than those of this warehouse.

        `has_rows` is true for a table that is not empty.
        """
        if done is None:
            if has_rows and not self.is_appended:
                raise Refused(
                    f"the table has rows that no export has written, and an export of {self.table} replaces "
                    "all rows; choose another table",
                    field="table",
                )
            return
        if done.source and done.source != self.position.source:
            raise Refused(
                f"the table has the {self.table} of {done.source}, and the warehouse those of "
                f"{self.position.source}; choose another table",
                field="table",
            )
        if done.generation > self.position.generation:
            raise Refused(
                f"the table has generation {done.generation}, and the warehouse only has "
                f"{self.position.generation}: it was made again. Choose another table",
                field="table",
            )

    def batches(self, done: Position | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows to write, queue by queue and at most BATCH_ROWS at once.

        These are the rows behind a position, or all rows of a table that is replaced.
        """
        if self.table == "ids":
            yield from self._merged_ids()
            return
        if not self.is_appended:
            done = None
        generation = 0 if done is None else done.generation
        for part, files in sorted(self.warehouse.files(self.table).items()):
            queue = self.warehouse.state.names.get(part.queue, part.queue)
            after = "" if done is None else done.offsets.get(queue, "")
            for file in files:
                # A file holds events of its own generation and earlier ones.
                if _generation_of(file) > generation:
                    yield from self._rows(file, part, queue, after)

    def _merged_ids(self) -> Iterator[pa.RecordBatch]:
        """Yield one row for each id. All rows of a queue are in memory at once."""
        state = self.warehouse.state
        files = sorted(self.warehouse.files("ids").items())
        for folder, parts in groupby(files, key=lambda item: item[0].queue):
            queue = state.names.get(folder, folder)
            batches = (
                batch for part, its in parts for file in its for batch in self._rows(file, part, queue, "")
            )
            merged = merge_ids(pa.Table.from_batches(batches, self.schema)).cast(self.schema)
            yield from merged.to_batches(BATCH_ROWS)

    def _rows(self, file: DataFile, part: TablePartition, queue: str, after: str) -> Iterator[pa.RecordBatch]:
        inner = [field.name for field in self.schema if field.name not in TablePartition._fields]
        with pq.ParquetFile(self.warehouse.store.open_file(file.path), pre_buffer=False) as opened:
            for batch in opened.iter_batches(BATCH_ROWS, columns=inner):
                new = batch.filter(pc.field("offset") > after) if self.is_appended else batch
                if new.num_rows:
                    yield _with_partition(new, queue, part.date, self.schema)


def _generation_of(file: DataFile) -> int:
    """Return the generation that added a file."""
    return int(file.path.rpartition("/")[2].partition("-")[0])


def _with_partition(rows: pa.RecordBatch, queue: str, date: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of the partition, which the names of its folders hold."""
    columns = {
        **{name: rows.column(name) for name in rows.schema.names},
        "queue": pa.repeat(pa.scalar(queue), rows.num_rows),
        "date": pa.repeat(pa.scalar(date).cast(pa.date32()), rows.num_rows),
    }
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def open_source(warehouse: str | Path, table: str) -> ExportSource:
    """Open a table of a warehouse. Raise Refused for an unknown table, and without a warehouse."""
    tables: tuple[ExportedTable, ...] = get_args(ExportedTable)
    for name in tables:
        if name == table:
            return ExportSource(Warehouse.existing(warehouse), name)
    raise Refused(f"unknown table {table!r:.80}; known tables: {', '.join(tables)}", field="table")


def encode_position(position: Position) -> str:
    """Return a position as JSON."""
    return msgspec.json.encode(position).decode()


def decode_position(text: str) -> Position:
    """Return the position in a JSON text. Raise StorageDamaged if it is invalid."""
    try:
        return msgspec.json.decode(text, type=Position)
    except msgspec.MsgspecError as error:
        raise StorageDamaged(f"{POSITION_KEY} of the table is no position: {error}") from error
