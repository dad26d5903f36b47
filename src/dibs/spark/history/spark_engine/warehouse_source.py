"""A data source of Spark that reads the files of a warehouse in an object store, one task for each file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dibs.spark.history.tables import table_schema
from dibs.spark.history.warehouse.datasets import dataset_of
from dibs.spark.history.warehouse.remote_store import RemoteStore


class WarehouseSource(ds.DataSource):
    """The data source `dibs_warehouse`: the files in the option `files` of a table of a warehouse."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "dibs_warehouse"

    def schema(self) -> StructType:
        """Return the columns of the table. This process has no SparkContext, which could parse DDL."""
        return from_arrow_schema(table_schema(self.options["table"]))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader of the files."""
        files = msgspec.json.decode(self.options["files"], type=list[str])
        return _FileReader(self.options["location"], self.options["table"], files, schema)


class _FilePartition(ds.InputPartition):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _FileReader(ds.DataSourceReader):
    def __init__(self, location: str, table: str, files: list[str], schema: StructType) -> None:
        self._location = location
        self._table = table
        self._files = files
        self._schema = schema

    def partitions(self) -> list[_FilePartition]:
        return [_FilePartition(path) for path in self._files]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        path = cast("_FilePartition", partition).path
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for batch in dataset_of(RemoteStore(self._location), self._table, [path]).to_batches():
            yield batch.select(wanted.names).cast(wanted)


def read_through_arrow(spark: SparkSession, location: str, table: str, files: list[str]) -> DataFrame:
    """Return the rows of files of a table in an object store."""
    spark.dataSource.register(WarehouseSource)
    options = {"location": location, "table": table, "files": msgspec.json.encode(files).decode()}
    return spark.read.format(WarehouseSource.name()).options(**options).load()
