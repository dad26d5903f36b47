"""The builder of a generation: it reads tables from files, and writes new files to the staging folder.

Most increments are small, and then Spark spends far more time on dividing the work than on the work. So
small tables are read as one partition each: sums, windows and joins need no shuffle, and one task does
it all. Larger tables are divided into partitions of PARTITION_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from attrs import frozen
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from dibs.spark.history.spark_engine.transforms import union
from dibs.spark.history.tables import PARTITION_COLUMNS, SORT_COLUMN, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dibs.spark.history.warehouse.draft import Draft

#: Maximum bytes of Parquet for one task: some 200,000 events.
ONE_TASK_BYTES: Final = 8 * 1024 * 1024
#: Up to this many bytes of Parquet, generating and compiling Java code for a query costs more than it saves.
INTERPRETED_BYTES: Final = 1024 * 1024
#: Bytes of Parquet per partition of larger tables; rows take many times that in memory.
PARTITION_BYTES: Final = 4 * 1024 * 1024
#: Spark broadcasts smaller tables in a join. The value is Spark's default.
BROADCAST_LIMIT: Final = "10MB"

_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_BROADCAST_THRESHOLD: Final = "spark.sql.autoBroadcastJoinThreshold"
_CODEGEN: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
_CODEGEN_SETTINGS: Final = {True: ("true", "FALLBACK"), False: ("false", "NO_CODEGEN")}
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


@contextmanager
def table_builder(spark: SparkSession, draft: Draft) -> Iterator[TableBuilder]:
    """Yield a TableBuilder for a draft, and restore the settings of the user's Spark session afterwards."""
    before = {
        name: spark.conf.get(name, None)
        for name in (*_SETTINGS, _SHUFFLE_PARTITIONS, _BROADCAST_THRESHOLD, *_CODEGEN)
    }
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        yield TableBuilder(spark, draft)
    finally:
        for name, set_before in before.items():
            if set_before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, set_before)


@frozen
class TableBuilder:
    """The reader and writer of the tables of one generation."""

    spark: SparkSession
    draft: Draft

    def use_one_task(self, *parts: Iterable[Path]) -> bool:
        """Return whether one task should process these files, and set Spark's parallelism accordingly."""
        size = sum(file.stat().st_size for files in parts for file in files)
        single = size <= ONE_TASK_BYTES
        partitions = max(self.spark.sparkContext.defaultParallelism, -(-size // PARTITION_BYTES))
        self.spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
        # In one task a broadcast has no receiver.
        self.spark.conf.set(_BROADCAST_THRESHOLD, "-1" if single else BROADCAST_LIMIT)
        for name, value in zip(_CODEGEN, _CODEGEN_SETTINGS[size > INTERPRETED_BYTES], strict=True):
            self.spark.conf.set(name, value)
        return single

    def read(self, table: str, files: Iterable[Path], *, single: bool) -> DataFrame:
        """Return the rows of a table in these files, in one partition with `single`."""
        table_schema = schema(table)
        groups = groupby(sorted(files), _base_folder)
        parts = [self._read_files_below(table, base, [*group]) for base, group in groups]
        if not parts:
            return self.local(to_arrow_schema(table_schema, timezone="UTC").empty_table(), single=single)
        return union(*parts, single=single)

    def _read_files_below(self, table: str, base: Path, files: list[Path]) -> DataFrame:
        source = self.spark.read.schema(schema(table)).option("basePath", str(base))
        return source.parquet(*map(str, files))

    def local(self, rows: pa.Table, *, single: bool) -> DataFrame:
        """Return rows of the driver as a frame that is cheap to join with a large one."""
        frame = self.spark.createDataFrame(rows)
        return frame.coalesce(1).hint("shuffle_hash") if single else f.broadcast(frame)

    def write_flat(self, name: str, frame: DataFrame) -> None:
        """Write rows as they come, without partitions. The files are read once, by this increment."""
        frame.write.options(**_STAGING).parquet(str(self.draft.staging(name)))

    def write(self, name: str, frame: DataFrame, *, table: str = "", is_clustered: bool) -> None:
        """Write rows by queue and day.

        `is_clustered` states that the rows of a partition are in the same task already. Otherwise Spark
        shuffles them, and splits a partition only if it is too large for a task.
        """
        order = [column for column in (SORT_COLUMN.get(table or name),) if column]
        if not is_clustered:
            frame = frame.hint("rebalance", *(f.col(column) for column in PARTITION_COLUMNS))
        rows = frame.sortWithinPartitions(*PARTITION_COLUMNS, *order)
        target = str(self.draft.staging(name))
        rows.write.partitionBy(*PARTITION_COLUMNS).options(**_STAGING).parquet(target)


def _base_folder(file: Path) -> Path:
    """Return the folder below which Spark reads folder names as column values."""
    return file.parents[2] if file.parent.name.startswith("date=") else file.parent
