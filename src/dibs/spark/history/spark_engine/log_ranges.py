"""The new events of an increment as a data source of Spark, which reads the ranges of a plan in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StringType, StructField, StructType

from dibs.spark.connection import StorageConnection
from dibs.spark.history.log_plan import LogRange, ReadPlan
from dibs.spark.history.logged_jobs import event_batches
from dibs.spark.history.spark_engine.transforms import utc_date
from dibs.spark.history.tables import JOB_COLUMNS
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
