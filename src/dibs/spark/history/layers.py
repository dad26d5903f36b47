"""From events to runs and to ids: what each row of the two layers is made of.

Functions from DataFrame to DataFrame; nothing is read or written here, and no clock or time zone of the
session has a say: times are compared as whole milliseconds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from dibs.spark.history.tables import ENDS, FINAL, IDS, PARTITIONS
from dibs.spark.schemas import COLUMNS


def ms(name: str) -> Column:
    """Return a timestamp as ms since the epoch."""
    return f.unix_millis(f.col(name))


def day_of(name: str) -> Column:
    """Return the day, in UTC, of a timestamp."""
    return f.date_from_unix_date(f.floor(ms(name) / 86_400_000).cast("int"))


def waited() -> Column:
    """Return the ms from due to claimed; null for what was cancelled unclaimed."""
    claimed = f.col("claimed_at")
    due = f.unix_millis(f.greatest("run_at", "enqueued_at"))
    return f.when(claimed.isNotNull(), f.greatest(f.unix_millis(claimed) - due, f.lit(0)))


def ran() -> Column:
    """Return the ms from claimed to ended; null for what was cancelled unclaimed."""
    claimed = f.col("claimed_at")
    return f.when(claimed.isNotNull(), f.greatest(ms("finished_at") - f.unix_millis(claimed), f.lit(0)))


def ended(events: DataFrame) -> DataFrame:
    """Return the events that tell an end: of an attempt, or of a job that was cancelled unclaimed."""
    return events.where(f.col("kind").isin(*ENDS) & f.col("finished_at").isNotNull())


def runs_of(events: DataFrame) -> DataFrame:
    """Return one row for each attempt that ended, in the partition of the day it finished."""
    told = (
        ended(events)
        .where(f.col("claimed_at").isNotNull())
        .withColumn("end", f.col("kind"))
        .withColumn("due_at", f.greatest("run_at", "enqueued_at"))
        .withColumn("wait_ms", waited())
        .withColumn("run_ms", ran())
        .withColumn("date", day_of("finished_at"))
    )
    return told.select(*(column.name for column in COLUMNS["runs"]), "date")


def ids_of(events: DataFrame) -> DataFrame:
    """Return one row for each id that ended at least once, in the partition of the day of its latest end.

    `merged` counts the enqueues that became part of a job which was there already.
    """
    found = (
        ended(events)
        .withColumns({"wait": waited(), "run": ran()})
        .groupBy("queue", "id")
        .agg(
            f.count("claimed_at").alias("attempts"),
            *(f.count_if(f.col("kind") == end).alias(end) for end in ENDS),
            f.sum(
                f.when(f.col("kind").isin(*FINAL), f.col("enqueues").cast("bigint") - 1).otherwise(0)
            ).alias("merged"),
            f.coalesce(f.sum("wait"), f.lit(0)).alias("wait_ms"),
            f.coalesce(f.max("wait"), f.lit(0)).alias("longest_wait_ms"),
            f.coalesce(f.sum("run"), f.lit(0)).alias("run_ms"),
            f.coalesce(f.max("run"), f.lit(0)).alias("longest_run_ms"),
            f.min("finished_at").alias("first_end_at"),
            f.max("finished_at").alias("last_end_at"),
        )
    )
    return found.withColumn("date", day_of("last_end_at")).select(*IDS, *PARTITIONS)


def united(*parts: DataFrame, one: bool) -> DataFrame:
    """Return the rows of several frames; with `one`, where each is one partition, as one partition."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole.coalesce(1) if one else whole


def joined_ids(*parts: DataFrame, one: bool = False) -> DataFrame:
    """Return ids told in several parts, each of different events, as one row each."""
    whole = {name: _JOINS.get(name, "sum") for name in IDS if name != "id"}
    joined = (
        united(*parts, one=one)
        .groupBy("queue", "id")
        .agg(*(getattr(f, how)(name).alias(name) for name, how in whole.items()))
    )
    return joined.withColumn("date", day_of("last_end_at")).select(*IDS, *PARTITIONS)


#: How a column of two parts becomes one; what is not here is a sum.
_JOINS = {"longest_wait_ms": "max", "longest_run_ms": "max", "first_end_at": "min", "last_end_at": "max"}
