"""The reader of a warehouse's tables for reports: pyarrow, in batches, without Spark.

A report reads one queue after the other. Memory holds the metrics of the queue, a count for each distinct
wait and run time, and the attempts due in one hour, but never all runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import frozen

from dibs.spark.history.warehouse.manifest import DataFile, folder_name
from dibs.spark.history.warehouse.warehouse import Warehouse

#: Rows in memory at once. A dataset of Arrow would hold a row group, a million rows and more, and read
#: ahead.
BATCH_ROWS: Final = 1 << 16
#: Bytes of a column in memory at once.
BUFFER_BYTES: Final = 1 << 20


@frozen
class WarehouseReader:
    """The reader of the tables of one generation."""

    _warehouse: Warehouse

    def queues(self) -> list[str]:
        """Return the names of the queues that have metrics."""
        names = self._warehouse.state.names
        return sorted({names.get(part.queue, part.queue) for part in self._warehouse.files("metrics")})

    def minutes(self, queue: str) -> list[dict[str, Any]]:
        """Return the metrics of a queue in order; `minute` is in ms."""
        rows = [row for batch in self.batches("metrics", queue) for row in batch.to_pylist()]
        rows.sort(key=itemgetter("minute"))
        return [{**row, "minute": datetime_to_ms(row["minute"])} for row in rows]

    def last_minute(self, queue: str) -> int:
        """Return the latest minute (ms) of the metrics of a queue, or 0."""
        latest = (pc.max(batch.column(0)).as_py() for batch in self.batches("metrics", queue, ["minute"]))
        return max(map(datetime_to_ms, latest), default=0)

    def count_values(self, table: str, queue: str, column: str) -> Counter[Any]:
        """Return the number of occurrences of each value of a column."""
        found: Counter[Any] = Counter()
        for batch in self.batches(table, queue, [column]):
            counts = pc.value_counts(batch.column(0))
            found.update({entry["values"]: entry["counts"] for entry in counts.to_pylist()})
        return found

    def column_pairs(
        self, table: str, queue: str, columns: tuple[str, str], where: Any
    ) -> list[tuple[Any, Any]]:
        """Return two columns of the rows that satisfy a condition; times are in ms."""
        found: list[tuple[Any, Any]] = []
        for batch in self.batches(table, queue, columns, where):
            left, right = (_timestamps_to_ms(batch.column(name)).to_pylist() for name in columns)
            found += zip(left, right, strict=True)
        return found

    def file_count(self, table: str, queue: str) -> int:
        """Return the number of files with rows of a queue."""
        return len(self._files(table, queue))

    def row_count(self, table: str, queue: str) -> int:
        """Return the number of rows of a queue."""
        return sum(file.rows for file in self._files(table, queue))

    def batches(
        self,
        table: str,
        queue: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        *,
        since: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a queue in batches of BATCH_ROWS: the given columns, filtered by `where`.

        Partitions of the days before `since` (ms) are left out.
        """
        for file in self._files(table, queue, since):
            source = self._warehouse.store.open_file(file.path)
            with pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False) as opened:
                for batch in opened.iter_batches(BATCH_ROWS, columns=columns):
                    filtered = batch if where is None else batch.filter(where)
                    if filtered.num_rows:
                        yield filtered

    def _files(self, table: str, queue: str, since: int = 0) -> list[DataFile]:
        folder, first = folder_name(queue), datetime.fromtimestamp(since / 1000, UTC).date().isoformat()
        parts = self._warehouse.files(table).items()
        return [file for part, its in parts if part.queue == folder and part.date >= first for file in its]


def best_rows(
    best: list[dict[str, Any]], rows: pa.RecordBatch | pa.Table, order: Sequence[str], most: int
) -> None:
    """Keep in `best` the `most` rows with the largest sums of the columns `order`, of `best` and `rows`.

    Rows with equal sums are sorted by id.
    """
    sums = reduce(pc.add, (rows.column(name) for name in order))
    keys = [("sum", "descending"), ("id", "ascending")]
    indexes = pc.select_k_unstable(rows.append_column("sum", sums), most, sort_keys=keys)
    best += rows.take(indexes).to_pylist()
    best.sort(key=lambda row: (-sum(row[name] for name in order), row["id"]))
    del best[most:]


def nearest_rank(counts: Mapping[int | None, int], percent: int) -> int | None:
    """Return the smallest value that at least `percent` of 100 values do not exceed, or None."""
    total = sum(n for value, n in counts.items() if value is not None)
    seen = 0
    for value in sorted(value for value in counts if value is not None):
        seen += counts[value]
        if 100 * seen >= percent * total:
            return value
    return None


def _timestamps_to_ms(column: pa.Array) -> pa.Array:
    """Return a timestamp column as ms, and any other column unchanged."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", tz=column.type.tz)).cast(pa.int64())


def ms_to_timestamp(at: int) -> pa.Scalar:
    """Return a time (ms since the epoch) for comparison with a timestamp column."""
    return pa.scalar(at * 1000, pa.timestamp("us", tz="UTC"))


def datetime_to_ms(moment: datetime) -> int:
    """Return a time as ms since the epoch."""
    return round(moment.timestamp() * 1000)
