"""The engine on Spark, for histories that are larger than one machine should compute.

Most increments are small, and then Spark spends far more time on dividing the work than on the work. So
small tables are read as one partition each: sums, windows and joins need no shuffle, and one task does
it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dibs.spark.connection import StorageConnection
from dibs.spark.history.storage_reads import ReadPart, part_batches
from dibs.spark.history.tables import PARTITION_COLUMNS, SORT_COLUMN, base_folder, schema, table_schema

if TYPE_CHECKING:
    from dibs.spark.history.tables import Sources, TableFiles
    from dibs.spark.history.warehouse.draft import WarehouseDraft

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
#: Tasks may move their files into the staging folder themselves, as a commit takes all staged files or none.
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
        """Return the name for `format(...)`."""
        return "dibs_history"

    def schema(self) -> StructType:
        """Return the columns of the table."""
        return from_arrow_schema(table_schema(self.options["table"]))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader of the parts in the option `parts`."""
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
def open_spark(spark: SparkSession, draft: WarehouseDraft) -> Iterator[SparkEngine]:
    """Yield the engine, and restore the settings of the user's Spark session afterwards."""
    before = {name: spark.conf.get(name, None) for name in (*_SETTINGS, *_sized_settings(0, 1))}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        yield SparkEngine(spark, draft)
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
    """`Engine` documents the methods."""

    _spark: SparkSession
    _draft: WarehouseDraft

    @property
    def tasks(self) -> int:
        """Number of tasks that Spark runs at once."""
        return self._spark.sparkContext.defaultParallelism

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> None:
        """Write the rows of `parts` of a storage, in a task for each long part."""
        self._spark.dataSource.register(ReadPartsSource)
        encoded = msgspec.json.encode(parts).decode()
        options = {"url": url, "table": table, "parts": encoded, "tasks": str(self.tasks)}
        rows = self._spark.read.format(ReadPartsSource.name()).options(**options).load()
        rows.write.options(**_STAGING).parquet(str(self._draft.staging(table)))

    def write(self, name: str, table: str, sql: str, sources: Sources) -> None:
        """Write the rows of a statement by queue and day.

        Spark shuffles large ones, and splits a partition only if it is too large for a task.
        """
        frame, is_small = self._frame(sql, sources)
        rows = frame if is_small else frame.hint("rebalance", *(f.col(name) for name in PARTITION_COLUMNS))
        order = [column for column in (*PARTITION_COLUMNS, SORT_COLUMN.get(table)) if column]
        rows = rows.sortWithinPartitions(*order)
        target = str(self._draft.staging(name))
        rows.write.partitionBy(*PARTITION_COLUMNS).options(**_STAGING).parquet(target)

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        """Return the rows of a statement."""
        return self._frame(sql, sources)[0].collect()

    def _frame(self, sql: str, sources: Sources) -> tuple[DataFrame, bool]:
        """Return the rows of a statement, and whether one task computes them."""
        files = [
            file for source in sources.values() if not isinstance(source, pa.Table) for file in source.files
        ]
        size = sum(file.stat().st_size for file in files)
        for name, value in _sized_settings(size, self.tasks).items():
            self._spark.conf.set(name, value)
        is_small = size <= ONE_TASK_BYTES
        frames = {name: source_frame(self._spark, source) for name, source in sources.items()}
        if is_small:
            frames = {name: frame.coalesce(1) for name, frame in frames.items()}
        return run_statement(self._spark, sql, frames), is_small


def run_statement(spark: SparkSession, sql: str, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a statement that reads the frames by their names."""
    parts = ", ".join(f"{name} AS (SELECT * FROM {{{name}}})" for name in sources)  # noqa: S608 - our names
    separator = ", " if sql.startswith("WITH ") else " "
    frames: dict[str, Any] = dict(sources)
    return spark.sql(f"WITH {parts}{separator}{sql.removeprefix('WITH ')}", None, **frames)


def source_frame(spark: SparkSession, source: TableFiles | pa.Table) -> DataFrame:
    """Return a source as a DataFrame."""
    if isinstance(source, pa.Table):
        return spark.createDataFrame(source)
    if not source.files:
        return spark.createDataFrame(table_schema(source.table).empty_table())
    reader = spark.read.schema(schema(source.table))
    frames = [
        reader.option("basePath", str(base)).parquet(*map(str, files))
        for base, files in groupby(sorted(source.files), base_folder)
    ]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionByName(other)
    return frame
