"""Data sources of the engine on Spark: the live jobs and the new events of a storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from dibs.spark.connection import StorageConnection
from dibs.spark.history.spark_engine.metrics import end_events, utc_date
from dibs.spark.history.storage_reads import LogRange, ReadPlan, event_batches, live_record_pages, live_rows
from dibs.spark.history.tables import (
    JOB_COLUMNS,
    JOB_ENDS,
    LIVE_COLUMNS,
    LIVE_READ_COLUMNS,
    PARTITION_COLUMNS,
)
from dibs.spark.history.warehouse.manifest import folder_name
from dibs.spark.schemas import struct_type


class LogRangeSource(ds.DataSource):
    """The data source `dibs_log_ranges`: ranges of several logs in one read.

    A long range gets a separate task. Several short ranges share a task, because opening a storage costs
    more than reading a page of a log.

    The data source `dibs` takes offsets for one queue only, and `mapInArrow`, which would work without a
    data source, needs pandas.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "dibs_log_ranges"

    def schema(self) -> StructType:
        """Return the columns of the table `events`."""
        # This process has no SparkContext, which could parse DDL.
        job_columns = [StructField(name, StringType()) for name in JOB_COLUMNS]
        return StructType([*struct_type("events"), *job_columns])

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader of the ranges in the option `plan`."""
        return _LogRangeReader(self.options["url"], msgspec.json.decode(self.options["plan"], type=ReadPlan))


class _LogPartition(ds.InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(len(ranges))
        self.ranges = ranges


class _LogRangeReader(ds.DataSourceReader):
    def __init__(self, url: str, plan: ReadPlan) -> None:
        self._url = url
        self._plan = plan

    def partitions(self) -> list[_LogPartition]:
        long = [[log] for log in self._plan.ranges if not log.is_short]
        short = [log for log in self._plan.ranges if log.is_short]
        groups = [short[index :: self._plan.tasks] for index in range(self._plan.tasks)]
        return [_LogPartition(group) for group in (*long, *groups) if group]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        with StorageConnection(self._url) as connection:
            for log in cast("_LogPartition", partition).ranges:
                yield from event_batches(connection, log)


def read_new_events(spark: SparkSession, url: str, plan: ReadPlan) -> DataFrame:
    """Return the events of a plan. The events of a range are in order, in one partition."""
    spark.dataSource.register(LogRangeSource)
    rows = msgspec.json.encode(plan).decode()
    source = spark.read.format(LogRangeSource.name()).option("url", url).option("plan", rows)
    return source.load().withColumn("date", utc_date("at"))


#: Columns that are sent to Spark as ms.
TIME_COLUMNS: Final = ("enqueued_at", "due_at", "claimed_at")


class _QueueGroup(ds.InputPartition):
    """The queues that one task reads.

    Several queues share a task, because opening a storage costs more than reading a queue with few live
    jobs.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(len(names))
        self.names = names


class LiveJobsSource(ds.DataSource):
    """The data source `dibs_live_jobs`: current jobs and successors, each with the number of its page."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "dibs_live_jobs"

    def schema(self) -> str:
        """Return the columns of the table."""
        kinds = {"queue": "string", **LIVE_READ_COLUMNS, **dict.fromkeys(TIME_COLUMNS, "bigint")}
        return ", ".join(f"{name} {kind}" for name, kind in kinds.items())

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader of the queues in the option `queues`; an empty list means all queues."""
        queues = msgspec.json.decode(self.options["queues"], type=tuple[str, ...])
        return _LiveJobsReader(self.options["url"], queues, int(self.options["tasks"]), schema)


class _LiveJobsReader(ds.DataSourceReader):
    def __init__(self, url: str, queues: Sequence[str], tasks: int, schema: StructType) -> None:
        self._url = url
        self._queues = queues
        self._tasks = tasks
        self._schema = schema

    def partitions(self) -> list[_QueueGroup]:
        with StorageConnection(self._url) as connection:
            names = self._queues or sorted(connection.queue_names())
        groups = (names[index :: self._tasks] for index in range(self._tasks))
        return [_QueueGroup(group) for group in groups if group]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        group, schema = cast("_QueueGroup", partition), to_arrow_schema(self._schema, timezone="UTC")
        if group.value is None:
            # Spark passes an empty partition if the plan has no partitions.
            return
        with StorageConnection(self._url) as connection:
            levels = {
                info.name: info.settings.log_level for info in connection.run(connection.storage.queues())
            }
            for queue in group.names:
                pages = live_record_pages(connection, queue, is_logged=levels.get(queue, "off") != "off")
                name = folder_name(queue)
                for seen, records in enumerate(pages):
                    if rows := [row for record in records for row in live_rows(name, record, seen)]:
                        columns = zip(*rows, strict=True)
                        arrays = [
                            pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)
                        ]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_live_jobs(spark: SparkSession, url: str, queues: Iterable[str] = ()) -> DataFrame:
    """Return the live jobs of a storage; without `queues`, of all queues."""
    spark.dataSource.register(LiveJobsSource)
    queues = msgspec.json.encode(sorted(set(queues))).decode()
    tasks = spark.sparkContext.defaultParallelism
    rows = spark.read.format(LiveJobsSource.name()).options(url=url, queues=queues, tasks=tasks).load()
    timed = rows.withColumns({name: f.timestamp_millis(name) for name in TIME_COLUMNS})
    return timed.withColumn("date", utc_date("enqueued_at")).select(*LIVE_READ_COLUMNS, *PARTITION_COLUMNS)


def without_ended(read: DataFrame, events: DataFrame) -> DataFrame:
    """Return the live jobs, except jobs that ended by the events read later.

    An active job whose attempt ended without ending the job, for example by a retry, becomes waiting.
    """
    newest = f.max("seen").over(Window.partitionBy("queue", "id"))
    latest = read.withColumn("newest", newest).where("seen = newest")
    over = end_events(events).where(f.col("kind").isin(*JOB_ENDS)).select("queue", "id", "first").distinct()
    back = end_events(events).where(f.col("fence").isNotNull()).select("queue", "id", "fence").distinct()
    returned = back.withColumn("returned", f.col("fence").isNotNull())
    left = latest.join(over, ["queue", "id", "first"], "left_anti").join(
        returned, ["queue", "id", "fence"], "left"
    )
    is_active = f.col("returned").isNull()
    return left.withColumns(
        {
            "claimed_at": f.when(is_active, f.col("claimed_at")),
            "fence": f.when(is_active, f.col("fence")),
            "state": f.when(is_active, f.col("state")).otherwise("waiting"),
        }
    ).select(*LIVE_COLUMNS, *PARTITION_COLUMNS)
