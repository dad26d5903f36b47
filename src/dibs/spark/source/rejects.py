"""The Parquet file of a task's rejected rows: their columns, and the field and reason of the error."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from dibs.errors import Refused
from dibs.spark.connection import absolute_location

#: Rejected rows that are kept in memory before they are written.
FLUSH_ROWS: Final = 1000
_REASON_COLUMNS: Final = (pa.field("reject_field", pa.string()), pa.field("reject_reason", pa.string()))


class RejectsFile:
    """The file of the rejected rows of one task.

    The file is visible after `commit`. A second attempt of the task replaces it.
    """

    def __init__(self, folder: str, name: str, attempt: int) -> None:
        self._system, self._folder = fs.FileSystem.from_uri(absolute_location(folder))
        self._final = f"{self._folder}/{name}.parquet"
        # Spark and Arrow ignore files whose names start with a dot.
        self._temporary = f"{self._folder}/.{name}.{attempt}.parquet"
        self._rows: list[pa.RecordBatch] = []
        self._reasons: list[tuple[str, str]] = []
        self._writer: pq.ParquetWriter | None = None
        self.count: int = 0

    def add(self, batch: pa.RecordBatch, row: int, refused: Refused) -> None:
        """Add one row of a batch with the error."""
        self._rows.append(batch.slice(row, 1))
        self._reasons.append((refused.field, str(refused)))
        self.count += 1
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def commit(self) -> None:
        """Move the file to its final name, if it has rows."""
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._system.move(self._temporary, self._final)

    def abort(self) -> None:
        """Delete the file."""
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._temporary)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._rows)
        for index, field in enumerate(_REASON_COLUMNS):
            table = table.append_column(field, pa.array([reason[index] for reason in self._reasons]))
        if self._writer is None:
            self._system.create_dir(self._folder, recursive=True)
            self._writer = pq.ParquetWriter(self._temporary, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self._rows, self._reasons = [], []


def write_text(location: str, text: str) -> None:
    """Write a small file atomically to a path or URI."""
    system, path = fs.FileSystem.from_uri(absolute_location(location))
    folder = path.rpartition("/")[0]
    if folder:
        system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{path}.part") as stream:
        stream.write(text.encode())
    system.move(f"{path}.part", path)
