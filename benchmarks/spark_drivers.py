"""Data sources in Python without a queue: plain tables of Postgres, written and read by its fastest drivers.

The writers take rows of an id and a payload, into a table with a primary key, without deduplication or other
guarantees. So they are the limit of what a queue can reach on the same server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.spark.source.arrow_rows import read_batches
from dibs.storage.abilities import ColumnQuery

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcStatement
    from pyspark.sql import DataFrame, SparkSession

# Spark imports this module in each of its Python processes, and a process ends after an idle minute. So a
# writer imports only what it uses: ADBC takes half a second, which is 2 us for each of 300,000 rows.


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


class AdbcWriter(ds.DataSourceArrowWriter):
    """Ingests each partition with ADBC's driver, which copies Arrow without an object for each row."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._table = options["url"], options["table"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        first = next(iterator, None)
        if first is not None:
            batches = pa.RecordBatchReader.from_batches(first.schema, self._all(first, iterator))
            with _statement(self._url) as statement:
                statement.set_options(
                    **{
                        "adbc.ingest.target_table": self._table,
                        "adbc.ingest.mode": "adbc.ingest.mode.append",
                    }
                )
                statement.bind_stream(batches)
                statement.execute_update()
        return ds.WriterCommitMessage()

    def _all(self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield first
        yield from others


class AdbcReader(ds.DataSourceReader):
    """Reads a table in one task, with the driver that dibs uses."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._query = table_query(options)

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(0)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_batches(self._query)


class CopySource(ds.DataSource):
    """The data source `plain_copy`, with the options url and table."""

    @classmethod
    def name(cls) -> str:
        return "plain_copy"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - the signature is Spark's
        return CopyWriter(self.options)


class AdbcSource(ds.DataSource):
    """The data source `plain_adbc`, with the options url and table."""

    @classmethod
    def name(cls) -> str:
        return "plain_adbc"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - see above

        query = table_query(self.options)
        with _statement(query.connection) as statement:
            statement.set_sql_query(f"{query.sql} limit 0")
            stream, _ = statement.execute_query()
            schema = pa.RecordBatchReader._import_from_c(stream.address).schema  # noqa: SLF001 - as ADBC does
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return AdbcReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - the signature is Spark's
        return AdbcWriter(self.options)


def table_query(options: Mapping[str, str]) -> ColumnQuery:
    return ColumnQuery(options["url"], f"select * from {options['table']}")  # noqa: S608 - a table of ours


@contextmanager
def _statement(url: str) -> Iterator[AdbcStatement]:
    from adbc_driver_manager import AdbcConnection, AdbcStatement  # noqa: PLC0415 - see above
    from adbc_driver_postgresql import connect  # noqa: PLC0415

    with (
        connect(url) as database,
        AdbcConnection(database) as connection,
        AdbcStatement(connection) as statement,
    ):
        yield statement


def write(rows: DataFrame, source: str, url: str, table: str) -> None:
    """Append rows to a table with the data source plain_copy or plain_adbc."""
    rows.write.format(source).mode("append").options(url=url, table=table).save()


def frame(spark: SparkSession, url: str, table: str) -> DataFrame:
    """Return a table of Postgres as a DataFrame that is read with ADBC."""
    return spark.read.format("plain_adbc").options(url=url, table=table).load()
