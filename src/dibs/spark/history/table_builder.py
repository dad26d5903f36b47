"""What the next generation is made with: tables read from their files, and the parts of new ones written.

An increment is mostly small, and then what Spark does to share work out costs far more than the work. So
tables that are little together are read as one partition each: of such, sums, windows and joins need no
exchange of rows, and one task does it all. Anything larger is shared out, in partitions to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from dibs.spark.history.tables import PARTITION_COLUMNS, SORT_COLUMN, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dibs.spark.history.warehouse import Draft

#: Bytes of Parquet that one task takes on: some 200,000 events.
ONE_TASK_BYTES: Final = 8 * 1024 * 1024
#: Bytes of Parquet for which it is not worth the while to make Java code of a query and compile that.
INTERPRETED_BYTES: Final = 1024 * 1024
#: Bytes of Parquet to one partition of what is shared out; rows take many times that in memory.
PARTITION_BYTES: Final = 4 * 1024 * 1024
#: Tables below this are sent whole to who joins them, as by default.
BROADCAST_LIMIT: Final = "10MB"

_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_BROADCAST_THRESHOLD: Final = "spark.sql.autoBroadcastJoinThreshold"
_CODEGEN: Final = ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
_CODEGEN_SETTINGS: Final = {True: ("true", "FALLBACK"), False: ("false", "NO_CODEGEN")}
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Spark writes times as INT96 by default, which has no statistics: every read would be of everything.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Where files lie is known; asking for the rest of their folders would take a Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
#: What is staged counts only as a whole: tasks may put their files in place by themselves.
_STAGING: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@contextmanager
def table_builder(spark: SparkSession, draft: Draft) -> Iterator[TableBuilder]:
    """Give what to make a draft with; the session may be somebody's own, and gets its settings back."""
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


class TableBuilder:
    """Reads what is there, and writes the parts of one generation into its staging."""

    def __init__(self, spark: SparkSession, draft: Draft) -> None:
        self.spark = spark
        self.draft = draft

    def staged_files(self, name: str) -> list[Path]:
        """Return the files that were written for a part; none for one that was not."""
        return sorted(self.draft.staging(name).rglob("*.parquet"))

    def use_one_task(self, *parts: Iterable[Path]) -> bool:
        """Tell whether one task is to do all with what is in these files; else share it out from here on."""
        size = sum(file.stat().st_size for files in parts for file in files)
        single = size <= ONE_TASK_BYTES
        partitions = max(self.spark.sparkContext.defaultParallelism, -(-size // PARTITION_BYTES))
        self.spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
        # In one task there is nobody to send a table to.
        self.spark.conf.set(_BROADCAST_THRESHOLD, "-1" if single else BROADCAST_LIMIT)
        for name, value in zip(_CODEGEN, _CODEGEN_SETTINGS[size > INTERPRETED_BYTES], strict=True):
            self.spark.conf.set(name, value)
        return single

    def read(self, table: str, files: Iterable[Path], *, single: bool) -> DataFrame:
        """Return the rows of a table that are in these files, as one partition or as Spark cuts them."""
        wanted = schema(table)
        groups = groupby(sorted(files), _base)
        parts = [self._below(table, base, [*group]) for base, group in groups]
        if not parts:
            return self.local(to_arrow_schema(wanted, timezone="UTC").empty_table(), single=single)
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        return rows.coalesce(1) if single else rows

    def _below(self, table: str, base: Path, files: list[Path]) -> DataFrame:
        source = self.spark.read.schema(schema(table)).option("basePath", str(base))
        return source.parquet(*map(str, files))

    def local(self, rows: pa.Table, *, single: bool) -> DataFrame:
        """Return rows that are known here, to be joined with many."""
        frame = self.spark.createDataFrame(rows)
        return frame.coalesce(1).hint("shuffle_hash") if single else f.broadcast(frame)

    def write_flat(self, name: str, frame: DataFrame) -> None:
        """Write rows as they come, in no partitions: to be read once."""
        frame.write.options(**_STAGING).parquet(str(self.draft.staging(name)))

    def write(self, name: str, frame: DataFrame, *, table: str = "", is_clustered: bool) -> None:
        """Write rows by queue and day.

        `is_clustered` says that those of a partition lie together as they come; else they are brought together,
        split only where a task would get too many.
        """
        order = [column for column in (SORT_COLUMN.get(table or name),) if column]
        rows = (
            frame
            if is_clustered
            else frame.hint("rebalance", *(f.col(column) for column in PARTITION_COLUMNS))
        )
        inside = rows.sortWithinPartitions(*PARTITION_COLUMNS, *order)
        inside.write.partitionBy(*PARTITION_COLUMNS).options(**_STAGING).parquet(
            str(self.draft.staging(name))
        )


def _base(file: Path) -> Path:
    """Return the folder under which the names of folders are values of columns."""
    return file.parents[2] if file.parent.name.startswith("date=") else file.parent
