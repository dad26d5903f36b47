"""Increments: `update` adds new events to a warehouse, and `rerun` computes its tables again.

An increment reads the new events of the logs and adds them to `events` and `runs`. It counts `metrics`
again from the first minute that has changed, and merges the attempts that ended into `ids`. Each increment is
atomic: the tables and the log offsets change with one rename (warehouse.py), so an increment that was
killed is simply repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from attrs import field, frozen
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from dibs.errors import Refused
from dibs.spark.connection import shared_url
from dibs.spark.history.live_jobs import read_live_jobs, without_ended
from dibs.spark.history.log_ranges import ReadPlan, plan_read, read_new_events, source_name
from dibs.spark.history.metrics import MINUTE, changes_of_ended, changes_of_live, difference, metrics_of
from dibs.spark.history.table_builder import TableBuilder, table_builder
from dibs.spark.history.tables import PARTITION_COLUMNS, latest_time, row_count
from dibs.spark.history.transforms import epoch_ms, ids_from, merge_ids, runs_from, union
from dibs.spark.history.warehouse import (
    LogGap,
    TablePartition,
    Warehouse,
    WarehouseState,
    folder_name,
)

#: Tables that only get new rows. Their small files are merged.
APPENDED_TABLES: Final = ("events", "runs")


@frozen(kw_only=True)
class Increment:
    """The result of one call of `update` or `rerun`."""

    #: Name of the current generation (one version of all tables); empty if the warehouse has none yet.
    generation: str
    #: Number of new events.
    events: int = 0
    #: Queue -> first minute (ms since the epoch) whose metrics were counted again.
    starts: Mapping[str, int] = field(factory=dict)
    #: Queues with events that were trimmed from the log before they were read.
    gaps: tuple[str, ...] = ()


def update(spark: SparkSession, url: str | None, root: Path, queues: Iterable[str] = ()) -> Increment:
    """Add the events since the last increment to the warehouse.

    The first increment reads the whole logs. Without `queues`, read all queues. Raise Refused for a
    warehouse of another storage or while another process writes to the warehouse, StorageTooNew for a
    warehouse that a newer dibs has written, and StorageError if the storage cannot be read. After an
    error the warehouse is unchanged.
    """
    storage_url, names = shared_url(url), sorted(set(queues))
    source = source_name(storage_url)
    with Warehouse(root).open_draft() as draft:
        state = draft.before.state
        if state.source and state.source != source:
            raise Refused(
                f"the warehouse {root} holds the history of {state.source}, not of {source}; "
                "choose another folder",
                field="warehouse",
            )
        with table_builder(spark, draft) as builder:
            # Read the live jobs first; log_ranges.py gives the reason.
            builder.write_flat("live-read", read_live_jobs(spark, storage_url, names))
            plan = plan_read(storage_url, state.offsets, names, tasks=spark.sparkContext.defaultParallelism)
            return _build_increment(builder, storage_url, replace(state, source=source), plan, names)


def rerun(
    spark: SparkSession, root: Path, since: datetime | None = None, until: datetime | None = None
) -> Increment:
    """Compute runs, metrics and ids again from the events in the warehouse, without reading the storage.

    This replaces the metrics from the minute of `since` up to the minute of `until`, the runs of these
    days, and all ids. The result is the same unless a newer dibs computes a column differently.
    """
    with Warehouse.existing(root).open_draft() as draft, table_builder(spark, draft) as builder:
        state = draft.before.state
        begin = _minute_ms(since, 0)
        end = _minute_ms(until, state.horizon + MINUTE)
        days = (_utc_day(begin), _utc_day(max(end - 1, begin)))
        event_files = draft.before.files("events")
        of_days = _all_files({part: event_files[part] for part in _partitions_between(event_files, *days)})
        builder.write("runs", runs_from(builder.read("events", of_days, single=False)), is_clustered=True)
        draft.replace("runs", _partitions_between(draft.before.files("runs"), *days), draft.staging("runs"))
        names = sorted({part.queue for table in ("events", "live") for part in draft.before.files(table)})
        starts = dict.fromkeys(names, begin)
        if names:
            live = _all_files(draft.before.files("live"))
            _count_metrics(builder, _all_files(event_files), live, starts, state.horizon, end)
        events = _all_files(event_files)
        single = builder.use_one_task(events)
        builder.write("ids", ids_from(builder.read("events", events, single=single)), is_clustered=single)
        draft.replace("ids", draft.before.files("ids"), draft.staging("ids"))
        return Increment(generation=draft.commit(state).generation, starts=_by_queue_name(starts, state))


def _build_increment(
    builder: TableBuilder, storage_url: str, state: WarehouseState, plan: ReadPlan, queues: Iterable[str]
) -> Increment:
    draft = builder.draft
    old_live = draft.before.files("live")
    # Without `queues` all queues were read. A queue that was not read keeps its live jobs.
    read = {part for part in old_live if not queues or part.queue in {*map(folder_name, queues)}}
    if plan.ranges:
        builder.write("events", read_new_events(builder.spark, storage_url, plan), is_clustered=True)
    new = builder.staged_files("events")
    _write_live(builder, new)
    kept = [file for part, files in old_live.items() if part not in read for file in files]
    live = [*builder.staged_files("live"), *kept]
    horizon = max(state.horizon, latest_time(new, "at"), latest_time(live, "enqueued_at", "claimed_at"))
    starts = _first_changed_minutes(builder, new, live, state.horizon, horizon)
    if not starts and state.offsets == plan.offsets and not plan.gaps:
        return Increment(generation=draft.before.generation)
    for table in APPENDED_TABLES:
        if table == "runs" and new:
            single = builder.use_one_task(new)
            builder.write("runs", runs_from(builder.read("events", new, single=single)), is_clustered=True)
        draft.add(table, draft.staging(table))
        _compact_table(builder, table)
    draft.replace("live", read, draft.staging("live"))
    if starts:
        known = draft.before.files("events")
        _count_metrics(builder, [*_all_files(known), *new], live, starts, horizon)
    if new:
        _merge_new_ids(builder, new)
    gaps = (*state.gaps, *(LogGap(queue=queue, at=state.horizon) for queue in plan.gaps))
    after = replace(
        state, offsets=plan.offsets, horizon=horizon, gaps=gaps, names={**state.names, **plan.names}
    )
    return Increment(
        generation=draft.commit(after).generation,
        events=row_count(new),
        starts=_by_queue_name(starts, after),
        gaps=plan.gaps,
    )


def _write_live(builder: TableBuilder, new: list[Path]) -> None:
    """Write the jobs read from the storage, except jobs that ended according to the new events."""
    read = builder.staged_files("live-read")
    single = builder.use_one_task(read, new)
    events = builder.read("events", new, single=single)
    live = without_ended(builder.read("live-read", read, single=single), events)
    builder.write("live", live, is_clustered=single)


def _first_changed_minutes(
    builder: TableBuilder, new: list[Path], live: list[Path], before: int, now: int
) -> dict[str, int]:
    """Return queue -> first minute (ms) whose metrics have changed, for the queues with changes."""
    old_files = _all_files(builder.draft.before.files("live"))
    single = builder.use_one_task(new, live, old_files)
    events = builder.read("events", new, single=single)
    old_live = builder.read("live", old_files, single=single)
    new_live = builder.read("live", live, single=single)
    changes = union(changes_of_ended(events), changes_of_live(new_live, now), single=single)
    changed = difference(changes, changes_of_live(old_live, before), single=single)
    of_events = events.groupBy("queue").agg(f.min(epoch_ms("at")).alias("start"))
    # A job that was live at the old horizon was live in all minutes since.
    of_live = old_live.select("queue", f.lit(before).alias("start")).distinct().where(f.lit(now > before))
    starts = union(changed, of_events, of_live, single=single)
    first = starts.groupBy("queue").agg(f.min("start").alias("start"))
    return {row["queue"]: row["start"] - row["start"] % MINUTE for row in first.collect()}


def _count_metrics(
    builder: TableBuilder,
    events: Iterable[Path],
    live: list[Path],
    starts: Mapping[str, int],
    horizon: int,
    end: int | None = None,
) -> None:
    """Replace the metrics of each queue from its start (ms) up to `end`, and keep its other minutes."""
    draft = builder.draft
    first = {queue: _utc_day(start) for queue, start in starts.items()}
    late = [
        file for file in events if _may_have_events_since(file, min(starts.values()), min(first.values()))
    ]
    files = draft.before.files("metrics")
    touched = [part for part in files if part.queue in first and part.date >= first[part.queue]]
    old = [file for part in touched for file in files[part]]
    single = builder.use_one_task(late, live, old)
    names = list(starts)
    known = builder.local(
        pa.table({"queue": names, "start": [starts[name] for name in names]}), single=single
    )
    counted = metrics_of(
        builder.read("events", late, single=single),
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
    draft.replace("metrics", touched, draft.staging("metrics"))


def _may_have_events_since(file: Path, start: int, day: str) -> bool:
    """Return whether a file of the table may have events from `start` (ms), which is on `day`, or later."""
    return file.parent.name.partition("=")[2] >= day and latest_time([file], "at") >= start


def _merge_new_ids(builder: TableBuilder, new: list[Path]) -> None:
    """Merge the attempts that ended into the table `ids`, which has one row per id.

    A row is stored under the day of the id's latest end, so the merge may move it to another partition.
    """
    draft = builder.draft
    known = draft.before.files("ids")
    single = builder.use_one_task(new, _all_files(known))
    fresh = ids_from(builder.read("events", new, single=single))
    old = builder.read("ids", _all_files(known), single=single)
    moved = old.join(fresh.select("queue", "id"), ["queue", "id"], "left_semi")
    both = union(moved.select(*PARTITION_COLUMNS), fresh.select(*PARTITION_COLUMNS), single=single)
    touched = [TablePartition(row["queue"], str(row["date"])) for row in both.distinct().collect()]
    if touched:
        touched_files = [file for part in touched for file in known.get(part, ())]
        merged = merge_ids(builder.read("ids", touched_files, single=single), fresh, single=single)
        builder.write("ids", merged, is_clustered=single)
        draft.replace("ids", touched, draft.staging("ids"))


def _compact_table(builder: TableBuilder, table: str) -> None:
    """Merge the small files of a partition into one file."""
    draft = builder.draft
    if files := draft.files_to_compact(table):
        single = builder.use_one_task(files)
        rows, name = builder.read(table, files, single=single), f"{table}-merged"
        whole = rows if single else rows.repartition(*PARTITION_COLUMNS)
        builder.write(name, whole, table=table, is_clustered=True)
        draft.compact(table, files, draft.staging(name))


def _all_files(files: Mapping[TablePartition, Iterable[Path]]) -> list[Path]:
    return [file for of_partition in files.values() for file in of_partition]


def _partitions_between(parts: Iterable[TablePartition], first: str, last: str) -> list[TablePartition]:
    return [part for part in parts if first <= part.date <= last]


def _by_queue_name(starts: Mapping[str, int], state: WarehouseState) -> dict[str, int]:
    """Return `starts` with the names of queues instead of the names of their folders."""
    return {state.names.get(queue, queue): start for queue, start in starts.items()}


def _minute_ms(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    at = int(moment.timestamp() * 1000)
    return at - at % MINUTE


def _utc_day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
