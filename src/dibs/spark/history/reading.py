"""The tables of a warehouse as DataFrames, read by a data source of their own.

The folder of a table also has files that were replaced, so a pattern such as `runs/**/*.parquet` would
return rows twice. The functions here return the files of the current generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.history.queries import statement
from dibs.spark.history.spark_engine import source_frame
from dibs.spark.history.tables import TableFiles, dataset_of, merge_ids, table_schema
from dibs.spark.history.warehouse.manifest import TABLES, DataFile
from dibs.spark.history.warehouse.store import RemoteStore
from dibs.spark.history.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


def table_files(warehouse: str | Path, table: str) -> list[str]:
    """Return the paths or URLs of the files of a table: events, runs, metrics, ids or live.

    The files are Parquet, with the columns `queue` and `date` in the names of their folders. They stay
    readable for an hour after an increment replaces them. Raise Refused for an unknown table, and for a
    location without a warehouse. The files of `ids` have several rows of an id, to be added up.
    """
    found, files = _open(warehouse, table)
    return [found.store.full_path(file.path) for file in files]


def table_dataset(warehouse: str | Path, table: str) -> pads.Dataset:
    """Return a table as a dataset of Arrow, which Polars, pandas and DuckDB read too.

    The dataset of `ids` has one row for each id and is in memory, with some 160 bytes for each row.
    Raise Refused for an unknown table, and for a location without a warehouse.
    """
    found, files = _open(warehouse, table)
    if not files:
        return pads.dataset(table_schema(table).empty_table())
    dataset = dataset_of(found.store, table, [file.path for file in files])
    return pads.dataset(merge_ids(dataset.to_table())) if table == "ids" else dataset


def table_frame(spark: SparkSession, warehouse: str | Path, table: str) -> DataFrame:
    """Return a table as a DataFrame.

    Spark reads the files of a folder itself, and those of an object store through pyarrow, so that it
    needs no jars for the store. Raise Refused for an unknown table, and for a location without a warehouse.
    """
    found, files = _open(warehouse, table)
    if not files:
        return spark.createDataFrame(table_schema(table).empty_table())
    if isinstance(found.store, RemoteStore):
        frame = read_through_arrow(spark, found.store.location, table, [file.path for file in files])
    else:
        paths = [found.store.local_copy(file.path) for file in files]
        frame = source_frame(spark, TableFiles(table, paths))
    if table != "ids":
        return frame
    # Without a day, all rows of an id become one.
    rows = frame.withColumn("date", f.lit(None).cast("date"))
    return spark.sql(
        statement("ids_merged", "merged", table="ids").replace("merged m", "{merged} m"), merged=rows
    )


def _open(warehouse: str | Path, table: str) -> tuple[Warehouse, list[DataFile]]:
    if table not in TABLES:
        raise Refused(f"unknown table {table!r:.80}; known tables: {', '.join(TABLES)}", field="table")
    opened = Warehouse.existing(warehouse)
    return opened, [*opened.manifest.tables.get(table, ())]
