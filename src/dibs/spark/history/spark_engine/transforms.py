"""The transformations from events to the tables `runs` and `ids`.

Functions from DataFrame to DataFrame, which neither read nor write. Times are compared as whole
milliseconds, so that the time zone of the session has no effect.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from dibs.spark.history.tables import (
    ATTEMPT_ENDS,
    IDS_COLUMNS,
    IDS_MERGES,
    JOB_COLUMNS,
    JOB_ENDS,
    PARTITION_COLUMNS,
)
from dibs.spark.schemas import COLUMNS


def epoch_ms(name: str) -> Column:
    """Return a timestamp column as ms since the epoch."""
    return f.unix_millis(f.col(name))


def utc_date(name: str) -> Column:
    """Return the day of a timestamp column in UTC."""
    return f.date_from_unix_date(f.floor(epoch_ms(name) / 86_400_000).cast("int"))


def wait_ms() -> Column:
    """Return the ms from due to claimed; null for a job cancelled before its claim."""
    claimed = f.col("claimed_at")
    due = f.unix_millis(f.greatest("run_at", "enqueued_at"))
    return f.when(claimed.isNotNull(), f.greatest(f.unix_millis(claimed) - due, f.lit(0)))


def run_ms() -> Column:
    """Return the ms from claimed to finished; null for a job cancelled before its claim."""
    claimed = f.col("claimed_at")
    return f.when(claimed.isNotNull(), f.greatest(epoch_ms("finished_at") - f.unix_millis(claimed), f.lit(0)))


def end_events(events: DataFrame) -> DataFrame:
    """Return the events that end an attempt, or that cancel a job before its claim."""
    return events.where(f.col("kind").isin(*ATTEMPT_ENDS) & f.col("finished_at").isNotNull())


def runs_from(events: DataFrame) -> DataFrame:
    """Return one row for each attempt that ended, partitioned by the day it finished."""
    runs = (
        end_events(events)
        .where(f.col("claimed_at").isNotNull())
        .withColumn("end", f.col("kind"))
        .withColumn("due_at", f.greatest("run_at", "enqueued_at"))
        .withColumn("wait_ms", wait_ms())
        .withColumn("run_ms", run_ms())
        .withColumn("date", utc_date("finished_at"))
    )
    return runs.select(*(column.name for column in COLUMNS["runs"]), *JOB_COLUMNS, "date")


def ids_from(events: DataFrame) -> DataFrame:
    """Return one row for each id that ended at least once, partitioned by the day of its latest end.

    `merged` counts the enqueues that updated or joined a pending job instead of adding one.
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
    """Return the rows of several frames.

    With `single`, each frame has one partition and so has the result.
    """
    rows = reduce(DataFrame.unionByName, frames)
    return rows.coalesce(1) if single else rows


def merge_ids(rows: DataFrame, *keys: str) -> DataFrame:
    """Return one row for each queue and id, and each value of the columns `keys`, of rows of `ids`."""
    merged = rows.groupBy("queue", "id", *keys).agg(
        *(getattr(f, how)(name).alias(name) for name, how in IDS_MERGES.items())
    )
    return merged.withColumn("date", utc_date("last_end_at")).select(*IDS_COLUMNS, *PARTITION_COLUMNS)
