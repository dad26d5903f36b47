"""A data sink in Python without a queue: plain tables of Postgres, written by COPY.

The writer takes rows of an id and a payload, into a table with a primary key, without deduplication or other
guarantees. So it is the limit of what a queue can reach on the same server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CopyWriter(ds.DataSourceArrowWriter):
    """Copies each partition in one transaction, with psycopg."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._table = options["url"], options["table"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        statement = f"copy {self._table} (id, payload) from stdin (format binary)"
        with psycopg.connect(self._url) as connection, connection.cursor().copy(statement) as copy:
            copy.set_types(["text", "bytea"])
            for batch in iterator:
                ids, payloads = (column.to_pylist() for column in batch.columns)
                for row in zip(ids, payloads, strict=True):
                    copy.write_row(row)
        return ds.WriterCommitMessage()


class CopySource(ds.DataSource):
    """The data source `plain_copy`, with the options url and table."""

    @classmethod
    def name(cls) -> str:
        return "plain_copy"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - the signature is Spark's
        return CopyWriter(self.options)


def write(rows: DataFrame, source: str, url: str, table: str) -> None:
    """Append rows to a table with the data source plain_copy."""
    rows.write.format(source).mode("append").options(url=url, table=table).save()
