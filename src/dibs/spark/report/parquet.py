"""The tables of a warehouse without Spark: what a report needs of them, read through pyarrow in batches.

A report looks at one queue after the other. It holds its minutes, how often each time occurs, and what falls
due in one hour, never all the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dibs.spark.history.warehouse import Warehouse, folder_name

#: Rows that are held at once. Datasets of Arrow's hold a row group, a million and more, and read ahead.
BATCH_ROWS: Final = 1 << 16
#: Bytes of a column that are read at once.
BUFFER_BYTES: Final = 1 << 20


class WarehouseReader:
    """The tables of one generation."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def queues(self) -> list[str]:
        """Return the queues that have metrics, by their own names."""
        names = self._warehouse.state.names
        return sorted({names.get(part.queue, part.queue) for part in self._warehouse.files("metrics")})

    def minutes(self, queue: str) -> list[dict[str, Any]]:
        """Return the metrics of a queue in order, `minute` as ms."""
        rows = [row for batch in self.batches("metrics", queue) for row in batch.to_pylist()]
        rows.sort(key=itemgetter("minute"))
        return [{**row, "minute": _ms(row["minute"])} for row in rows]

    def count_values(self, table: str, queue: str, column: str) -> Counter[Any]:
        """Return how often each value of a column occurs."""
        found: Counter[Any] = Counter()
        for batch in self.batches(table, queue, [column]):
            counts = pc.value_counts(batch.column(0))
            found.update({entry["values"]: entry["counts"] for entry in counts.to_pylist()})
        return found

    def column_pairs(
        self, table: str, queue: str, columns: tuple[str, str], where: Any
    ) -> list[tuple[Any, Any]]:
        """Return two columns of the rows that meet a condition."""
        found: list[tuple[Any, Any]] = []
        for batch in self.batches(table, queue, columns, where):
            left, right = (_plain(batch.column(name)).to_pylist() for name in columns)
            found += zip(left, right, strict=True)
        return found

    def top_rows(
        self, table: str, queue: str, columns: Sequence[str], order: str, most: int, where: Any = None
    ) -> list[dict[str, Any]]:
        """Return some columns of the rows with the largest values of one, largest first; of equals, by id."""
        best: list[dict[str, Any]] = []
        for batch in self.batches(table, queue, columns, where):
            keys = [(order, "descending"), ("id", "ascending")]
            indexes = pc.select_k_unstable(batch, most, sort_keys=keys)
            best = sorted([*best, *batch.take(indexes).to_pylist()], key=lambda row: (-row[order], row["id"]))
            del best[most:]
        return best

    def batches(
        self, table: str, queue: str, columns: Sequence[str] | None = None, where: Any = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a queue, a few at a time: some columns or all; `where` speaks of these."""
        folder = folder_name(queue)
        for part, files in self._warehouse.files(table).items():
            for file in files if part.queue == folder else ():
                with pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as opened:
                    for batch in opened.iter_batches(BATCH_ROWS, columns=columns):
                        rows_ = batch if where is None else batch.filter(where)
                        if rows_.num_rows:
                            yield rows_


def nearest_rank(counts: Mapping[int | None, int], percent: int) -> int | None:
    """Return the least value that at least so many in a hundred do not exceed; None without any."""
    total = sum(n for value, n in counts.items() if value is not None)
    seen = 0
    for value in sorted(value for value in counts if value is not None):
        seen += counts[value]
        if 100 * seen >= percent * total:
            return value
    return None


def _plain(column: pa.Array) -> pa.Array:
    """Return times as whole ms."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", tz=column.type.tz)).cast(pa.int64())


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
