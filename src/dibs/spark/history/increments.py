"""The history of every run as tables: one increment after another, each whole or not at all.

An increment reads what the logs gained, adds it to `events` and `runs`, recounts `metrics` from the first
minute that says something else now, and joins `ids`. Offsets and tables change by the same rename
(warehouse.py), so an increment that was killed is simply done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dibs.errors import Refused
from dibs.spark.door import place_of
from dibs.spark.history.intake import Look, events_in, live_in, look, source_of, still_live
from dibs.spark.history.layers import ids_of, joined_ids, ms, runs_of
from dibs.spark.history.metrics import MINUTE, changes_of_ended, changes_of_live, difference, metrics_of
from dibs.spark.history.tables import PARTITIONS, read, schema
from dibs.spark.history.warehouse import Draft, Gap, Partition, State, Warehouse

#: The tables that only ever grow: their small files are merged.
GROWING: Final = ("events", "runs")
#: What the rows of a growing table lie in order of, so that a range of time is read without the rest.
_ORDER: Final = {"events": "at", "runs": "finished_at"}


class Increment(Struct, frozen=True, kw_only=True):
    """What one call of `update` or `rerun` came to."""

    #: The generation that is current now; empty while there is none.
    generation: str
    #: Events that were new.
    events: int = 0
    #: Queue -> the first minute, ms, whose metrics were counted again.
    starts: dict[str, int] = {}
    #: Queues of which events were trimmed from the log before they were read.
    gaps: tuple[str, ...] = ()


def update(spark: SparkSession, url: str | None, root: Path, queues: Iterable[str] = ()) -> Increment:
    """Take into the warehouse what happened at a place since the last time; the first time, all there is.

    Without `queues`, of every queue there is. Raises Refused for a warehouse of another place, or one that
    another process writes to, StorageTooNew for one of a newer dibs, StorageError where the place cannot be
    read. Whatever is raised, the warehouse is as it was.
    """
    place, names = place_of(url), sorted(set(queues))
    source = source_of(place)
    with Warehouse(root).changing() as draft:
        state = draft.before.state
        if state.source and state.source != source:
            raise Refused(
                f"the warehouse {root} holds the history of {state.source}, not of {source}; "
                "take another folder",
                field="warehouse",
            )
        making = _Making(spark, draft)
        making.write("live-read", live_in(spark, place, names))
        seen = look(place, state.offsets, names)
        return _increment(making, place, replace(state, source=source), seen)


def rerun(
    spark: SparkSession, root: Path, since: datetime | None = None, until: datetime | None = None
) -> Increment:
    """Make runs, metrics and ids again from the events in the warehouse; the storage is not asked.

    Metrics from the minute of `since` up to that of `until`, runs of the days these touch, all ids. It gives
    the same tables, unless a newer dibs counts better.
    """
    with Warehouse.existing(root).changing() as draft:
        making = _Making(spark, draft)
        state = draft.before.state
        events, live = making.before("events"), making.before("live")
        begin = _minute_ms(since, 0)
        end = _minute_ms(until, state.horizon + MINUTE)
        days = [_day(begin), _day(max(end - 1, begin))]
        making.write("runs", runs_of(events.where(f.col("date").between(*days))))
        inside = [part for part in draft.before.files("runs") if days[0] <= part.date <= days[1]]
        draft.replace("runs", inside, draft.staging("runs"))
        names = {part.queue for table in ("events", "live") for part in draft.before.files(table)}
        if names:
            making.metrics(events, live, dict.fromkeys(sorted(names), begin), state.horizon, end)
        making.write("ids", ids_of(events))
        draft.replace("ids", draft.before.files("ids"), draft.staging("ids"))
        return Increment(generation=draft.commit(state).generation, starts=dict.fromkeys(names, begin))


def _increment(making: _Making, place: str, state: State, seen: Look) -> Increment:
    draft = making.draft
    making.write("events", events_in(making.spark, place, seen.stretches))
    new, before = making.staged("events"), state.horizon
    making.write("live", still_live(making.staged("live", "live-read"), new))
    live = making.staged("live")
    count, newest = _told(new, live)
    horizon = max(before, newest)
    starts = _starts(making, new, live, before, horizon)
    if not starts and state.offsets == seen.offsets and not seen.gaps:
        return Increment(generation=draft.before.generation)
    making.write("runs", runs_of(new))
    for table in GROWING:
        draft.add(table, draft.staging(table))
        making.merge(table)
    draft.replace("live", draft.before.files("live"), draft.staging("live"))
    if starts:
        making.metrics(making.before("events").unionByName(new), live, starts, horizon)
    if count:
        making.ids(new)
    gaps = (*state.gaps, *(Gap(queue=queue, at=before) for queue in seen.gaps))
    made = draft.commit(replace(state, offsets=seen.offsets, horizon=horizon, gaps=gaps))
    return Increment(generation=made.generation, events=count, starts=starts, gaps=seen.gaps)


#: Spark writes times as INT96 by default, which has no statistics: every read would be of everything.
_TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class _Making:
    """Writes the parts of one generation, and reads what is there already."""

    def __init__(self, spark: SparkSession, draft: Draft) -> None:
        self.spark = spark
        self.draft = draft

    def before(self, table: str) -> DataFrame:
        """Return a table as it was."""
        return read(self.spark, table, self.draft.before.table(table))

    def staged(self, table: str, name: str = "") -> DataFrame:
        """Return what was written for a table."""
        return read(self.spark, table, self.draft.staging(name or table))

    def write(self, name: str, frame: DataFrame) -> None:
        """Write rows, those of a partition together: split only where a task would get too many."""
        order = [column for column in (_ORDER.get(name),) if column]
        whole = frame.hint("rebalance", *(f.col(column) for column in PARTITIONS))
        self._save(name, whole.sortWithinPartitions(*PARTITIONS, *order))

    def _save(self, name: str, frame: DataFrame) -> None:
        setting, value = _TIMES
        before = self.spark.conf.get(setting)
        self.spark.conf.set(setting, value)
        try:
            frame.write.partitionBy(*PARTITIONS).parquet(str(self.draft.staging(name)))
        finally:
            # The session may be somebody's own.
            self.spark.conf.set(setting, before or value)

    def merge(self, table: str) -> None:
        """Make one file of the many small ones of a partition."""
        if files := self.draft.crowded(table):
            name = f"{table}-merged"
            places = sorted({file.parents[2] for file in files})
            parts = [self._files(table, place, files) for place in places]
            whole = parts[0]
            for part in parts[1:]:
                whole = whole.unionByName(part)
            one_each = whole.repartition(*PARTITIONS)
            self._save(name, one_each.sortWithinPartitions(*PARTITIONS, _ORDER[table]))
            self.draft.merge(table, files, self.draft.staging(name))

    def _files(self, table: str, place: Path, files: Sequence[Path]) -> DataFrame:
        paths = [str(file) for file in files if file.is_relative_to(place)]
        return self.spark.read.schema(schema(table)).option("basePath", str(place)).parquet(*paths)

    def metrics(
        self,
        events: DataFrame,
        live: DataFrame,
        starts: Mapping[str, int],
        horizon: int,
        end: int | None = None,
    ) -> None:
        """Count the minutes of each queue again from its start on, before `end`; keep all others."""
        first = {queue: _day(start) for queue, start in starts.items()}
        rows = [(queue, start, first[queue]) for queue, start in starts.items()]
        known = self.spark.createDataFrame(rows, "queue string, start bigint, first string")
        late = events.where(f.col("date") >= f.lit(min(first.values())).cast("date"))
        counted = metrics_of(late, live, known.drop("first"), horizon)
        old = self.before("metrics").join(f.broadcast(known), "queue")
        is_kept = ms("minute") < f.col("start")
        if end is not None:
            counted = counted.where(ms("minute") < end)
            is_kept |= ms("minute") >= end
        kept = old.where((f.col("date") >= f.col("first").cast("date")) & is_kept).drop("start", "first")
        self.write("metrics", kept.unionByName(counted))
        files = self.draft.before.files("metrics")
        touched = [part for part in files if part.queue in first and part.date >= first[part.queue]]
        self.draft.replace("metrics", touched, self.draft.staging("metrics"))

    def ids(self, new: DataFrame) -> None:
        """Join the ids that ended with what was known of them; an id lies with the day of its latest end."""
        fresh, old = ids_of(new), self.before("ids")
        moved = old.join(fresh.select("queue", "id"), ["queue", "id"], "left_semi")
        touched = moved.select(*PARTITIONS).union(fresh.select(*PARTITIONS)).distinct().collect()
        if touched:
            known = old.join(f.broadcast(self.spark.createDataFrame(touched)), [*PARTITIONS], "left_semi")
            self.write("ids", joined_ids(known, fresh))
            parts = [Partition(row["queue"], str(row["date"])) for row in touched]
            self.draft.replace("ids", parts, self.draft.staging("ids"))


def _told(new: DataFrame, live: DataFrame) -> tuple[int, int]:
    """Return how many events are new, and the newest time that is told."""
    of_events = new.select(f.lit(1).alias("one"), ms("at").alias("at"))
    of_live = live.select(f.lit(0), f.greatest(ms("enqueued_at"), ms("claimed_at")))
    told = of_events.union(of_live).agg(f.sum("one"), f.max("at")).collect()[0]
    return told[0] or 0, told[1] or 0


def _starts(making: _Making, new: DataFrame, live: DataFrame, before: int, now: int) -> dict[str, int]:
    """Return, for each queue with any, the first minute (ms) that says something else now."""
    old = making.before("live")
    changed = difference(
        changes_of_ended(new).unionByName(changes_of_live(live, now)), changes_of_live(old, before)
    )
    told = new.groupBy("queue").agg(f.min(ms("at")).alias("start"))
    # Who was there at the old horizon was there in all minutes since.
    there = old.select("queue", f.lit(before).alias("start")).distinct().where(f.lit(now > before))
    first = changed.unionByName(told).unionByName(there).groupBy("queue").agg(f.min("start").alias("start"))
    return {row["queue"]: row["start"] - row["start"] % MINUTE for row in first.collect()}


def _minute_ms(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    at = int(moment.timestamp() * 1000)
    return at - at % MINUTE


def _day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
