"""Rows that were refused, kept as Parquet: their own columns, and the field and reason of the refusal."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from dibs.errors import Refused
from dibs.spark.connection import absolute_location

#: Rejects that are gathered before they are written.
FLUSH_ROWS: Final = 1000
_REASONS: Final = (pa.field("reject_field", pa.string()), pa.field("reject_reason", pa.string()))


class RejectsFile:
    """The rejects of one task. Nothing can be seen of them until `commit`; a second attempt replaces them."""

    def __init__(self, folder: str, name: str, attempt: int) -> None:
        self._system, folder_path = fs.FileSystem.from_uri(absolute_location(folder))
        self._final = f"{folder_path}/{name}.parquet"
        # Spark and Arrow pass over names that begin so.
        self._temporary = f"{folder_path}/.{name}.{attempt}.parquet"
        self._folder = folder_path
        self._rows: list[pa.RecordBatch] = []
        self._reasons: list[tuple[str, str]] = []
        self._writer: pq.ParquetWriter | None = None
        self.count: int = 0

    def add(self, batch: pa.RecordBatch, row: int, refused: Refused) -> None:
        """Take one row of a batch in."""
        self._rows.append(batch.slice(row, 1))
        self._reasons.append((refused.field, str(refused)))
        self.count += 1
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def commit(self) -> None:
        """Put the file in place, if there is anything in it."""
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._system.move(self._temporary, self._final)

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._temporary)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._rows)
        for folder_path, field in enumerate(_REASONS):
            table = table.append_column(field, pa.array([reason[folder_path] for reason in self._reasons]))
        if self._writer is None:
            self._system.create_dir(self._folder, recursive=True)
            self._writer = pq.ParquetWriter(self._temporary, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self._rows, self._reasons = [], []


def write_text(location: str, text: str) -> None:
    """Write a small file whole, wherever paths and URIs lead."""
    system, path = fs.FileSystem.from_uri(absolute_location(location))
    folder = path.rpartition("/")[0]
    if folder:
        system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{path}.part") as stream:
        stream.write(text.encode())
    system.move(f"{path}.part", path)
