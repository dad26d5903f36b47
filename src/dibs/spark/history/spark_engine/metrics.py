"""The computations of the engine on Spark: runs, ids, and the metrics of minutes.

The functions neither read nor write. Times are compared as whole
milliseconds, so that the time zone of the session has no effect.

Every quantity over time (waiting, due and active jobs) is a sum of *changes*: plus one when a state
begins, minus one when it ends. A change does not depend on other rows, so an attempt need not be matched
with the one before it: a retried attempt puts its job back into waiting, and only the last attempt of a
job, whose event has the time of the enqueue, counts its arrival. Increments rely on this law:

    The metrics from a minute on follow from the attempts that finish in or after that minute,
    and from the jobs that are live.

An attempt that finished earlier also began earlier. If its job came back, the arrival is counted by the
attempt that ends the job. So a late event causes a recount from its own minute on, never of the whole
history.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from dibs.spark.history.tables import (
    ATTEMPT_ENDS,
    ENQUEUE_EVENTS,
    IDS_COLUMNS,
    IDS_MERGES,
    JOB_COLUMNS,
    JOB_ENDS,
    METRICS_COLUMNS,
    MINUTE,
    PARTITION_COLUMNS,
    PERCENTILES,
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


#: Columns of a change. Counters count events; gauges keep their level until the next change.
COUNTERS: Final = ("arrivals", "claims")
GAUGES: Final = ("waiting", "due", "active")


def minute_start(at: Column) -> Column:
    """Return the start of the minute that contains a time, both in ms."""
    return at - at % MINUTE


def changes_of_ended(events: DataFrame) -> DataFrame:
    """Return the changes that ends cause: queue, at (ms), and the amount of each counter and gauge."""
    is_last = f.col("kind").isin(*JOB_ENDS)
    was_claimed = f.col("claimed_at").isNotNull()
    enqueued, claimed, finished = epoch_ms("enqueued_at"), epoch_ms("claimed_at"), epoch_ms("finished_at")
    due = f.greatest(epoch_ms("run_at"), enqueued)
    until = f.coalesce(claimed, finished)
    comes_back = f.when(is_last, 0).otherwise(1)
    return _explode_changes(
        end_events(events),
        (is_last, _change_at(enqueued, arrivals=1, waiting=1)),
        (was_claimed, _change_at(claimed, claims=1, waiting=-1, active=1)),
        (was_claimed, _change_at(finished, waiting=comes_back, active=-1)),
        (~was_claimed, _change_at(finished, waiting=-1)),
        (due < until, _change_at(due, due=1)),
        (due < until, _change_at(until, due=-1)),
    )


def changes_of_live(live: DataFrame, horizon: int) -> DataFrame:
    """Return the changes that live jobs imply. A job that falls due after the horizon is not due yet."""
    was_claimed = f.col("claimed_at").isNotNull()
    enqueued, due, claimed = epoch_ms("enqueued_at"), epoch_ms("due_at"), epoch_ms("claimed_at")
    return _explode_changes(
        live,
        (enqueued.isNotNull(), _change_at(enqueued, arrivals=1, waiting=1)),
        (was_claimed, _change_at(claimed, claims=1, waiting=-1, active=1)),
        (due < f.coalesce(claimed, f.lit(horizon + 1)), _change_at(due, due=1)),
        (was_claimed & (due < claimed), _change_at(claimed, due=-1)),
    )


def _change_at(at: Column, **by: int | Column) -> Column:

    def amount(name: str) -> Column:
        value = by.get(name, 0)
        return (f.lit(value) if isinstance(value, int) else value).cast("bigint").alias(name)

    return f.struct(at.alias("at"), *(amount(name) for name in (*COUNTERS, *GAUGES)))


def _explode_changes(rows: DataFrame, *cases: tuple[Column, Column]) -> DataFrame:

    changes = f.filter(
        f.array(*(f.when(when, change) for when, change in cases)), lambda change: change.isNotNull()
    )
    return rows.select("queue", f.inline(changes))


def difference(now: DataFrame, before: DataFrame, *, single: bool = False) -> DataFrame:
    """Return, per queue, the first time (ms) at which two sets of changes differ, as the column `start`."""
    names = (*COUNTERS, *GAUGES)
    undone = before.select("queue", "at", *((-f.col(name)).alias(name) for name in names))
    summed = (
        union(now, undone, single=single)
        .groupBy("queue", "at")
        .agg(*(f.sum(name).alias(name) for name in names))
    )
    differs = f.greatest(*(f.abs(f.col(name)) for name in names)) > 0
    return summed.where(differs).groupBy("queue").agg(f.min("at").alias("start"))


def metrics_of(
    events: DataFrame, live: DataFrame, starts: DataFrame, horizon: int, *, single: bool = False
) -> DataFrame:
    """Return the metrics of each queue from its `start` to the minute of the horizon.

    `starts` has a row (queue, start) for each wanted queue; a start is a whole minute in ms. `events`
    has at least the events at or after the start; `live` has all live jobs. With `single`, the three
    frames have one partition each, and so has the result.
    """
    starts = starts if single else f.broadcast(starts)
    from_start = events.join(starts, "queue").where(epoch_ms("at") >= f.col("start")).drop("start")
    of_live = changes_of_live(live.join(starts.select("queue"), "queue"), horizon)
    changes = union(changes_of_ended(from_start), of_live, single=single)
    counted = (
        _gauges_by_minute(changes.join(starts, "queue"), horizon, single=single)
        .join(_count_finished(from_start), ["queue", "minute"], "left")
        .join(_count_enqueues(from_start), ["queue", "minute"], "left")
    )
    zeros = [*ATTEMPT_ENDS, "attempts", "wait_ms", "run_ms", "holders"]
    rates = {"retry_rate": "retried", "stall_rate": "stalled", "timeout_rate": "timed_out"}
    whole = counted.fillna(0, zeros).withColumns(
        {
            **{rate: f.try_divide(f.col(end), f.col("attempts")) for rate, end in rates.items()},
            "utilisation": f.try_divide(f.col("active"), f.col("active_peak")),
            "minute": f.timestamp_millis("minute"),
        }
    )
    return whole.withColumn("date", utc_date("minute")).select(*METRICS_COLUMNS, *PARTITION_COLUMNS)


def _gauges_by_minute(changes: DataFrame, horizon: int, *, single: bool) -> DataFrame:
    """Return counters and gauges for each minute with a change or with a gauge above zero."""
    by_minute = _sum_by_minute(changes, single=single)
    in_order = Window.partitionBy("queue").orderBy("minute")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = {f"{level}_end": f.sum(level).over(so_far) for level in GAUGES}
    after = f.coalesce(f.lead("minute").over(in_order), f.lit(horizon - horizon % MINUTE + MINUTE))
    with_levels = by_minute.withColumns({**ends, "after": after})
    is_there = f.greatest(*(f.col(name) for name in ends)) > 0
    last = f.when(is_there & (f.col("after") > f.col("minute")), f.col("after") - MINUTE).otherwise(
        f.col("minute")
    )
    filled = with_levels.withColumn("at", f.explode(f.sequence("minute", last, f.lit(MINUTE))))
    is_first = f.col("at") == f.col("minute")
    opening = {level: f.col(f"{level}_end") - f.when(is_first, f.col(level)).otherwise(0) for level in GAUGES}
    weighed = {level: f.when(is_first, f.col(f"{level}_ms")).otherwise(0) for level in GAUGES}
    peak_inside = f.when(is_first, opening["active"] + f.col("active_rise"))
    # The opening level of a minute counts for its peak, unless the first change comes in the minute's first
    # ms.
    peak_before = f.when(~is_first | (f.col("active_first") > f.col("minute")), opening["active"])
    return filled.select(
        "queue",
        f.col("at").alias("minute"),
        *(f.when(is_first, f.col(name)).otherwise(0).alias(name) for name in COUNTERS),
        f.col("waiting_end").alias("backlog"),
        f.col("due_end").alias("backlog_due"),
        *(((opening[level] * MINUTE + weighed[level]) / MINUTE).alias(level) for level in GAUGES),
        f.greatest(peak_inside, peak_before).alias("active_peak"),
    )


def _sum_by_minute(changes: DataFrame, *, single: bool) -> DataFrame:
    """Sum the changes of each minute; changes before a queue's start count as made at the start.

    `…_ms` is the amount that the changes add to the minute's sum of level x ms. `active_rise` is the
    highest level of `active` above the opening level, and `active_first` the time of its first change.
    """
    is_before = f.col("at") < f.col("start")
    timed = (
        changes.withColumns({name: f.when(is_before, 0).otherwise(f.col(name)) for name in COUNTERS})
        .withColumn("at", f.greatest("at", "start"))
        .withColumn("minute", minute_start(f.col("at")))
    )
    # Partition by minute first: one shuffle then serves the sums, the window and the minutes.
    is_clustered = timed if single else timed.repartition("queue", "minute")
    at_once = is_clustered.groupBy("queue", "minute", "at").agg(
        *(f.sum(name).alias(name) for name in (*COUNTERS, *GAUGES))
    )
    inside = Window.partitionBy("queue", "minute").orderBy("at")
    rest = f.col("minute") + MINUTE - f.col("at")
    return (
        at_once.withColumn("rise", f.sum("active").over(inside))
        .groupBy("queue", "minute")
        .agg(
            *(f.sum(name).alias(name) for name in (*COUNTERS, *GAUGES)),
            *(f.sum(f.col(level) * rest).alias(f"{level}_ms") for level in GAUGES),
            f.max("rise").alias("active_rise"),
            f.min("at").alias("active_first"),
        )
    )


def _count_finished(events: DataFrame) -> DataFrame:
    """Return the columns that are counted in the minute in which an attempt finishes."""
    was_claimed = f.col("claimed_at").isNotNull()
    lists = (
        end_events(events)
        .withColumns({"wait": wait_ms(), "run": run_ms(), "minute": minute_start(epoch_ms("finished_at"))})
        .groupBy("queue", "minute")
        .agg(
            *(f.count_if(f.col("kind") == end).alias(end) for end in ATTEMPT_ENDS),
            f.count("claimed_at").alias("attempts"),
            f.sum("wait").alias("wait_ms"),
            f.sum("run").alias("run_ms"),
            f.count_distinct(f.when(was_claimed, f.col("holder"))).alias("holders"),
            f.sort_array(f.collect_list("wait")).alias("wait"),
            f.sort_array(f.collect_list("run")).alias("run"),
        )
    )
    ranked = {f"{name}_p{p}_ms": _percentile(f.col(name), p) for name in ("wait", "run") for p in PERCENTILES}
    return lists.withColumns(ranked).drop("wait", "run")


def _percentile(ordered: Column, p: int) -> Column:
    """Return the percentile by nearest rank: the smallest value that p of 100 values do not exceed."""
    rank = f.floor((f.size(ordered) * p + 99) / 100).cast("int")
    return f.when(f.size(ordered) > 0, f.element_at(ordered, f.greatest(rank, f.lit(1))))


def _count_enqueues(events: DataFrame) -> DataFrame:
    """Return the number of accepted enqueues per minute. Only log level `all` records enqueues."""
    return (
        events.where(f.col("kind").isin(*ENQUEUE_EVENTS))
        .withColumn("minute", minute_start(epoch_ms("at")))
        .groupBy("queue", "minute")
        .agg(f.count("*").alias("enqueues"))
    )
