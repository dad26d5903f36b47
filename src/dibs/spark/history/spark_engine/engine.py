"""The engine on Spark: the computations of an increment as queries on Parquet files.

Most increments are small, and then Spark spends far more time on dividing the work than on the work. So
small tables are read as one partition each: sums, windows and joins need no shuffle, and one task does
it all. Larger tables are divided into partitions of PARTITION_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from attrs import frozen
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from dibs.spark.history.spark_engine.metrics import (
    changes_of_ended,
    changes_of_live,
    difference,
    epoch_ms,
    ids_from,
    merge_ids,
    metrics_of,
    runs_from,
    union,
)
from dibs.spark.history.spark_engine.storage_sources import read_live_jobs, read_new_events, without_ended
from dibs.spark.history.tables import MINUTE, PARTITION_COLUMNS, SORT_COLUMN, schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dibs.spark.history.storage_reads import ReadPlan
    from dibs.spark.history.warehouse.draft import WarehouseDraft

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
def table_builder(spark: SparkSession, draft: WarehouseDraft) -> Iterator[TableBuilder]:
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
    draft: WarehouseDraft

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


@contextmanager
def open_spark(spark: SparkSession, draft: WarehouseDraft) -> Iterator[SparkEngine]:
    """Yield the engine, and restore the settings of the user's Spark session afterwards."""
    with table_builder(spark, draft) as builder:
        yield SparkEngine(builder)


@frozen
class SparkEngine:
    """The computations of an increment on Spark; `Engine` documents the methods."""

    _builder: TableBuilder

    @property
    def tasks(self) -> int:
        """Number of tasks that Spark runs at once."""
        return self._builder.spark.sparkContext.defaultParallelism

    def read_live(self, url: str, queues: Sequence[str]) -> None:
        """Write the live jobs of a storage under the name `live-read`."""
        self._builder.write_flat("live-read", read_live_jobs(self._builder.spark, url, queues))

    def read_events(self, url: str, plan: ReadPlan) -> None:
        """Write the events of a plan under the name `events`."""
        events = read_new_events(self._builder.spark, url, plan)
        self._builder.write("events", events, is_clustered=True)

    def write_live(self, read: Sequence[Path], new: Sequence[Path]) -> None:
        """Write `live`: the jobs in `read`, except jobs that ended by the events in `new`."""
        builder = self._builder
        single = builder.use_one_task(read, new)
        events = builder.read("events", new, single=single)
        live = without_ended(builder.read("live-read", read, single=single), events)
        builder.write("live", live, is_clustered=single)

    def first_changed_minutes(
        self, new: Sequence[Path], live: Sequence[Path], old_live: Sequence[Path], before: int, now: int
    ) -> dict[str, int]:
        """Return queue -> first minute (ms) whose metrics have changed, for the queues with changes."""
        builder = self._builder
        single = builder.use_one_task(new, live, old_live)
        events = builder.read("events", new, single=single)
        old = builder.read("live", old_live, single=single)
        changes = union(
            changes_of_ended(events),
            changes_of_live(builder.read("live", live, single=single), now),
            single=single,
        )
        changed = difference(changes, changes_of_live(old, before), single=single)
        of_events = events.groupBy("queue").agg(f.min(epoch_ms("at")).alias("start"))
        # A job that was live at the old horizon was live in all minutes since.
        of_live = old.select("queue", f.lit(before).alias("start")).distinct().where(f.lit(now > before))
        starts = union(changed, of_events, of_live, single=single)
        first = starts.groupBy("queue").agg(f.min("start").alias("start"))
        return {row["queue"]: row["start"] - row["start"] % MINUTE for row in first.collect()}

    def write_runs(self, events: Sequence[Path]) -> None:
        """Write `runs`: one row for each attempt that ended by these events."""
        builder = self._builder
        single = builder.use_one_task(events)
        builder.write("runs", runs_from(builder.read("events", events, single=single)), is_clustered=single)

    def write_metrics(
        self,
        events: Sequence[Path],
        live: Sequence[Path],
        old: Sequence[Path],
        starts: Mapping[str, int],
        horizon: int,
        end: int | None,
    ) -> None:
        """Write `metrics`: of each queue in `starts`, its minutes from the start (ms) up to `end`."""
        builder = self._builder
        single = builder.use_one_task(events, live, old)
        names = list(starts)
        known = builder.local(
            pa.table({"queue": names, "start": [starts[name] for name in names]}), single=single
        )
        counted = metrics_of(
            builder.read("events", events, single=single),
            builder.read("live", live, single=single),
            known,
            horizon,
            single=single,
        )
        is_kept = epoch_ms("minute") < f.col("start")
        if end is not None:
            counted = counted.where(epoch_ms("minute") < end)
            is_kept |= epoch_ms("minute") >= end
        kept = builder.read("metrics", old, single=single).join(known, "queue").where(is_kept).drop("start")
        builder.write("metrics", union(kept, counted, single=single), is_clustered=single)

    def write_ids(self, events: Sequence[Path]) -> None:
        """Write `ids`: one row for each id that ended by these events, on the day of its latest end."""
        builder = self._builder
        single = builder.use_one_task(events)
        builder.write("ids", ids_from(builder.read("events", events, single=single)), is_clustered=single)

    def merge_files(self, table: str, files: Sequence[Path], name: str) -> None:
        """Write the rows of several files of a table under `name`, as one file for each partition."""
        builder = self._builder
        single = builder.use_one_task(files)
        rows = builder.read(table, files, single=single)
        if table == "ids":
            rows = merge_ids(rows, "date")
        whole = rows if single else rows.repartition(*PARTITION_COLUMNS)
        builder.write(name, whole, table=table, is_clustered=True)
