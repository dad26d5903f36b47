"""From events to runs and to ids: what each row of the two layers is made of.

Functions from DataFrame to DataFrame; nothing is read or written here, and no clock or time zone of the
session has a say: times are compared as whole milliseconds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from dibs.spark.history.tables import ATTEMPT_ENDS, IDS_COLUMNS, JOB_ENDS, PARTITION_COLUMNS
from dibs.spark.schemas import COLUMNS


def epoch_ms(name: str) -> Column:
    """Return a timestamp as ms since the epoch."""
    return f.unix_millis(f.col(name))


def utc_date(name: str) -> Column:
    """Return the day, in UTC, of a timestamp."""
    return f.date_from_unix_date(f.floor(epoch_ms(name) / 86_400_000).cast("int"))


def wait_ms() -> Column:
    """Return the ms from due to claimed; null for what was cancelled unclaimed."""
    claimed = f.col("claimed_at")
    due = f.unix_millis(f.greatest("run_at", "enqueued_at"))
    return f.when(claimed.isNotNull(), f.greatest(f.unix_millis(claimed) - due, f.lit(0)))


def run_ms() -> Column:
    """Return the ms from claimed to ended; null for what was cancelled unclaimed."""
    claimed = f.col("claimed_at")
    return f.when(claimed.isNotNull(), f.greatest(epoch_ms("finished_at") - f.unix_millis(claimed), f.lit(0)))


def end_events(events: DataFrame) -> DataFrame:
    """Return the events that tell an end: of an attempt, or of a job that was cancelled unclaimed."""
    return events.where(f.col("kind").isin(*ATTEMPT_ENDS) & f.col("finished_at").isNotNull())


def runs_from(events: DataFrame) -> DataFrame:
    """Return one row for each attempt that ended, in the partition of the day it finished."""
    runs = (
        end_events(events)
        .where(f.col("claimed_at").isNotNull())
        .withColumn("end", f.col("kind"))
        .withColumn("due_at", f.greatest("run_at", "enqueued_at"))
        .withColumn("wait_ms", wait_ms())
        .withColumn("run_ms", run_ms())
        .withColumn("date", utc_date("finished_at"))
    )
    return runs.select(*(column.name for column in COLUMNS["runs"]), "date")


def ids_from(events: DataFrame) -> DataFrame:
    """Return one row for each id that ended at least once, in the partition of the day of its latest end.

    `merged` counts the enqueues that became part of a job which was there already.
    """
    found = (
        end_events(events)
        .withColumns({"wait": wait_ms(), "run": run_ms()})
        .groupBy("queue", "id")
        .agg(
            f.count("claimed_at").alias("attempts"),
            *(f.count_if(f.col("kind") == end).alias(end) for end in ATTEMPT_ENDS),
            f.sum(
                f.when(f.col("kind").isin(*JOB_ENDS), f.col("enqueues").cast("bigint") - 1).otherwise(0)
            ).alias("merged"),
            f.coalesce(f.sum("wait"), f.lit(0)).alias("wait_ms"),
            f.coalesce(f.max("wait"), f.lit(0)).alias("longest_wait_ms"),
            f.coalesce(f.sum("run"), f.lit(0)).alias("run_ms"),
            f.coalesce(f.max("run"), f.lit(0)).alias("longest_run_ms"),
            f.min("finished_at").alias("first_end_at"),
            f.max("finished_at").alias("last_end_at"),
        )
    )
    return found.withColumn("date", utc_date("last_end_at")).select(*IDS_COLUMNS, *PARTITION_COLUMNS)


def union(*frames: DataFrame, single: bool) -> DataFrame:
    """Return the rows of several frames; with `single`, where each is one partition, as one partition."""
    united_ = frames[0]
    for frame in frames[1:]:
        united_ = united_.unionByName(frame)
    return united_.coalesce(1) if single else united_


def merge_ids(*frames: DataFrame, single: bool = False) -> DataFrame:
    """Return ids told in several parts, each of different events, as one row each."""
    united_ = {name: _AGGREGATES.get(name, "sum") for name in IDS_COLUMNS if name != "id"}
    joined = (
        union(*frames, single=single)
        .groupBy("queue", "id")
        .agg(*(getattr(f, aggregate)(name).alias(name) for name, aggregate in united_.items()))
    )
    return joined.withColumn("date", utc_date("last_end_at")).select(*IDS_COLUMNS, *PARTITION_COLUMNS)


#: How a column of two parts becomes one; what is not here is a sum.
_AGGREGATES = {"longest_wait_ms": "max", "longest_run_ms": "max", "first_end_at": "min", "last_end_at": "max"}
