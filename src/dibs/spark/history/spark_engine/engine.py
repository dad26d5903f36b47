"""The engine on Spark: the computations of an increment as queries on Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from attrs import frozen
from pyspark.sql import functions as f

from dibs.spark.history.spark_engine.live_jobs import read_live_jobs, without_ended
from dibs.spark.history.spark_engine.log_ranges import read_new_events
from dibs.spark.history.spark_engine.metrics import changes_of_ended, changes_of_live, difference, metrics_of
from dibs.spark.history.spark_engine.table_builder import TableBuilder, table_builder
from dibs.spark.history.spark_engine.transforms import epoch_ms, ids_from, merge_ids, runs_from, union
from dibs.spark.history.tables import MINUTE, PARTITION_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dibs.spark.history.log_plan import ReadPlan
    from dibs.spark.history.warehouse.draft import Draft


@contextmanager
def open_spark(spark: SparkSession, draft: Draft) -> Iterator[SparkEngine]:
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
