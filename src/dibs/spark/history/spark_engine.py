"""The engine on Spark, for histories that are larger than one machine should compute.

Most increments are small, and then Spark spends far more time on dividing the work than on the work. So
small tables are read as one partition each: sums, windows and joins need no shuffle, and one task does
it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from attrs import asdict, evolve, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dibs.spark.connection import StorageConnection
from dibs.spark.executors import count_slots
from dibs.spark.history.queries import statement
from dibs.spark.history.storage_reads import ReadPart, part_batches
from dibs.spark.history.tables import VIEWS, TableRows, staged_rows, table_schema

if TYPE_CHECKING:
    from dibs.spark.history.tables import Sources

#: Maximum bytes of Parquet for one task: some 200,000 events.
ONE_TASK_BYTES: Final = 8 * 1024 * 1024
#: Up to this many bytes of Parquet, generating and compiling Java code for a query costs more than it saves.
INTERPRETED_BYTES: Final = 1024 * 1024
#: Bytes of Parquet per partition of larger tables; rows take many times that in memory.
PARTITION_BYTES: Final = 4 * 1024 * 1024

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # By default Spark writes times as INT96, which has no statistics, so a read could skip no row group.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The paths of all files are known, and listing their folders would take a Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
#: Tasks may move their files into the folder of the increment themselves: it is read when all have ended.
_STAGING: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class ReadPartsSource(ds.DataSource):
    """The data source `dibs_history`: parts of logs and live jobs of several queues in one read.

    The data source `dibs` takes offsets for one queue only. Several short parts share a task, because opening
    a storage costs more than reading a page of a log.
    """

    @classmethod
    def name(cls) -> str:
        return "dibs_history"

    def schema(self) -> StructType:
        """Return the columns of the table."""
        return from_arrow_schema(table_schema(self.options["table"]))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return _PartsReader(
            self.options["url"],
            msgspec.json.decode(self.options["parts"], type=list[ReadPart]),
            int(self.options["tasks"]),
        )


class _PartsReader(ds.DataSourceReader):
    def __init__(self, url: str, parts: list[ReadPart], tasks: int) -> None:
        self._url = url
        self._parts = parts
        self._tasks = tasks

    def partitions(self) -> list[ds.InputPartition]:
        long = [[part] for part in self._parts if not part.is_short]
        short = [part for part in self._parts if part.is_short]
        groups = [short[index :: self._tasks] for index in range(self._tasks)]
        return [ds.InputPartition(group) for group in (*long, *groups) if group]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            # Spark passes an empty partition if the plan has no partitions.
            return
        with StorageConnection(self._url) as connection:
            for part in cast("list[ReadPart]", partition.value):
                yield from part_batches(connection, part)


@contextmanager
def open_spark(spark: SparkSession, folder: Path) -> Iterator[SparkEngine]:
    """Yield the engine, and restore the settings of the user's Spark session afterwards."""
    before = {name: spark.conf.get(name, None) for name in (*_SETTINGS, *_sized_settings(0, 1))}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        yield SparkEngine(spark, folder)
    finally:
        for name, set_before in before.items():
            if set_before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, set_before)


def _sized_settings(size: int, tasks: int) -> dict[str, str]:
    """Return the settings for a statement on `size` bytes of Parquet."""
    compiled = size > INTERPRETED_BYTES
    return {
        "spark.sql.shuffle.partitions": str(
            1 if size <= ONE_TASK_BYTES else max(tasks, -(-size // PARTITION_BYTES))
        ),
        "spark.sql.codegen.wholeStage": str(compiled).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if compiled else "NO_CODEGEN",
    }


@frozen
class SparkEngine:
    """The engine that runs the statements of the history on Spark. `Engine` documents the methods."""

    _spark: SparkSession
    _folder: Path

    @property
    def tasks(self) -> int:
        """Number of tasks that Spark runs at once."""
        return count_slots(self._spark)

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> TableRows:
        """Write the rows of `parts` of a storage, in a task for each long part."""
        self._spark.dataSource.register(ReadPartsSource)
        encoded = msgspec.json.encode(parts).decode()
        options = {"url": url, "table": table, "parts": encoded, "tasks": str(self.tasks)}
        return self._save(table, self._spark.read.format(ReadPartsSource.name()).options(**options).load())

    def write(self, table: str, sql: str, sources: Sources) -> TableRows:
        return self._save(table, self._frame(sql, sources))

    def _save(self, table: str, rows: DataFrame) -> TableRows:
        folder = self._folder / table
        rows.write.options(**_STAGING).parquet(str(folder))
        return staged_rows(table, folder)

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        return self._frame(sql, sources).collect()

    def _frame(self, sql: str, sources: Sources) -> DataFrame:
        size = sum(source.bytes for source in sources.values() if isinstance(source, TableRows))
        for name, value in _sized_settings(size, self.tasks).items():
            self._spark.conf.set(name, value)
        frames = {name: source_frame(self._spark, source) for name, source in sources.items()}
        if size <= ONE_TASK_BYTES:
            frames = {name: frame.coalesce(1) for name, frame in frames.items()}
        return run_statement(self._spark, sql, frames)


def run_statement(spark: SparkSession, sql: str, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a statement that reads the frames by their names."""
    parts = ", ".join(f"{name} AS (SELECT * FROM {{{name}}})" for name in sources)  # noqa: S608 - our names
    separator = ", " if sql.startswith("WITH ") else " "
    frames: dict[str, Any] = dict(sources)
    return spark.sql(f"WITH {parts}{separator}{sql.removeprefix('WITH ')}", None, **frames)


def source_frame(spark: SparkSession, source: TableRows | pa.Table) -> DataFrame:
    """Return a source as a DataFrame.

    Spark reads the files of a folder itself, and those of an object store through pyarrow, so that it needs
    no jars for the store.
    """
    if isinstance(source, pa.Table):
        # Spark Connect infers no schema of a table without rows.
        return spark.createDataFrame(source, from_arrow_schema(source.schema))
    if not source.paths:
        return source_frame(spark, table_schema(source.table).empty_table())
    if source.is_remote:
        spark.dataSource.register(RemoteRowsSource)
        encoded = msgspec.json.encode(asdict(source)).decode()
        frame = spark.read.format(RemoteRowsSource.name()).option("rows", encoded).load()
    else:
        schema = from_arrow_schema(table_schema(source.table))
        frame = spark.read.schema(schema).parquet(*source.files)
    return frame.alias("t").where(source.where) if source.where else frame


def table_frame(spark: SparkSession, warehouse: str | Path, table: str) -> DataFrame:
    """Return events, runs, metrics, ids or live as a DataFrame.

    Raise Refused for an unknown table, and for a location without a warehouse.
    """
    # Executors import this module, and need no deltalake.
    from dibs.spark.history.warehouse import table_rows  # noqa: PLC0415

    if table not in VIEWS:
        return source_frame(spark, table_rows(warehouse, table))
    events = source_frame(spark, table_rows(warehouse, "events"))
    return run_statement(spark, statement(table, "events", table=table), {"events": events})


class RemoteRowsSource(ds.DataSource):
    """The data source `dibs_files`: files of a table in an object store, one for each task."""

    @classmethod
    def name(cls) -> str:
        return "dibs_files"

    def _rows(self) -> TableRows:
        return TableRows(**msgspec.json.decode(self.options["rows"]))

    def schema(self) -> StructType:
        """Return the columns of the table. This process has no SparkContext, which could parse DDL."""
        return from_arrow_schema(table_schema(self._rows().table))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return _FileReader(self._rows())


class _FileReader(ds.DataSourceReader):
    def __init__(self, rows: TableRows) -> None:
        self._rows = rows

    def partitions(self) -> list[ds.InputPartition]:
        return [ds.InputPartition(path) for path in self._rows.paths]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        yield from evolve(self._rows, paths=[partition.value]).dataset().to_batches()
