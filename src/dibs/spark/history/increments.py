"""The history of every run as tables: one increment after another, each whole or not at all.

An increment reads what the logs gained, adds it to `events` and `runs`, recounts `metrics` from the first
minute that says something else now, and joins `ids`. Offsets and tables change by the same rename
(warehouse.py), so an increment that was killed is simply done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct
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
from dibs.spark.history.warehouse import LogGap, TablePartition, Warehouse, WarehouseState

#: The tables that only ever grow: their small files are merged.
APPENDED_TABLES: Final = ("events", "runs")


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
    storage_url, names = shared_url(url), sorted(set(queues))
    source = source_name(storage_url)
    with Warehouse(root).open_draft() as draft:
        state = draft.before.state
        if state.source and state.source != source:
            raise Refused(
                f"the warehouse {root} holds the history of {state.source}, not of {source}; "
                "take another folder",
                field="warehouse",
            )
        with table_builder(spark, draft) as new:
            new.write_flat("live-read", read_live_jobs(spark, storage_url, names))
            plan = plan_read(storage_url, state.offsets, names, tasks=spark.sparkContext.defaultParallelism)
            return _increment(new, storage_url, replace(state, source=source), plan)


def rerun(
    spark: SparkSession, root: Path, since: datetime | None = None, until: datetime | None = None
) -> Increment:
    """Make runs, metrics and ids again from the events in the warehouse; the storage is not asked.

    Metrics from the minute of `since` up to that of `until`, runs of the days these touch, all ids. It gives
    the same tables, unless a newer dibs counts better.
    """
    with Warehouse.existing(root).open_draft() as draft, table_builder(spark, draft) as new:
        state = draft.before.state
        begin = _minute_ms(since, 0)
        end = _minute_ms(until, state.horizon + MINUTE)
        days = (_day(begin), _day(max(end - 1, begin)))
        event_files = draft.before.files("events")
        inside = [
            file for part, files_ in event_files.items() for file in files_ if days[0] <= part.date <= days[1]
        ]
        new.write("runs", runs_from(new.read("events", inside, single=False)), is_clustered=True)
        draft.replace("runs", _between(draft.before.files("runs"), *days), draft.staging("runs"))
        names = sorted({part.queue for table in ("events", "live") for part in draft.before.files(table)})
        starts = dict.fromkeys(names, begin)
        if names:
            live = _all_files(draft.before.files("live"))
            _count_metrics(new, _all_files(event_files), live, starts, state.horizon, end)
        events = _all_files(event_files)
        single = new.use_one_task(events)
        new.write("ids", ids_from(new.read("events", events, single=single)), is_clustered=single)
        draft.replace("ids", draft.before.files("ids"), draft.staging("ids"))
        return Increment(generation=draft.commit(state).generation, starts=_by_queue_name(starts, state))


def _increment(builder: TableBuilder, storage_url: str, state: WarehouseState, plan: ReadPlan) -> Increment:
    draft = builder.draft
    if plan.ranges:
        builder.write("events", read_new_events(builder.spark, storage_url, plan), is_clustered=True)
    new = builder.staged_files("events")
    _write_live(builder, new)
    live = builder.staged_files("live")
    horizon = max(state.horizon, latest_time(new, "at"), latest_time(live, "enqueued_at", "claimed_at"))
    starts = _starts(builder, new, live, state.horizon, horizon)
    if not starts and state.offsets == plan.offsets and not plan.gaps:
        return Increment(generation=draft.before.generation)
    for table in APPENDED_TABLES:
        if table == "runs" and new:
            single = builder.use_one_task(new)
            builder.write("runs", runs_from(builder.read("events", new, single=single)), is_clustered=True)
        draft.add(table, draft.staging(table))
        _compact(builder, table)
    draft.replace("live", draft.before.files("live"), draft.staging("live"))
    if starts:
        known = draft.before.files("events")
        _count_metrics(builder, [*_all_files(known), *new], live, starts, horizon)
    if new:
        _join_ids(builder, new)
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
    """Write who is live now: those that were read, but for what the new events say of them since."""
    read = builder.staged_files("live-read")
    single = builder.use_one_task(read, new)
    events = builder.read("events", new, single=single)
    live = without_ended(builder.read("live-read", read, single=single), events)
    builder.write("live", live, is_clustered=single)


def _starts(
    builder: TableBuilder, new: list[Path], live: list[Path], before: int, now: int
) -> dict[str, int]:
    """Return, for each queue with any, the first minute (ms) that says something else now."""
    was = _all_files(builder.draft.before.files("live"))
    single = builder.use_one_task(new, live, was)
    events = builder.read("events", new, single=single)
    ended = changes_of_ended(events)
    old = builder.read("live", was, single=single)
    waits = changes_of_live(builder.read("live", live, single=single), now)
    changed = difference(union(ended, waits, single=single), changes_of_live(old, before), single=single)
    event_files = events.groupBy("queue").agg(f.min(epoch_ms("at")).alias("start"))
    # Who was there at the old horizon was there in all minutes since.
    there = old.select("queue", f.lit(before).alias("start")).distinct().where(f.lit(now > before))
    every = union(changed, event_files, there, single=single)
    first = every.groupBy("queue").agg(f.min("start").alias("start"))
    return {row["queue"]: row["start"] - row["start"] % MINUTE for row in first.collect()}


def _count_metrics(
    builder: TableBuilder,
    events: Iterable[Path],
    live: list[Path],
    starts: Mapping[str, int],
    horizon: int,
    end: int | None = None,
) -> None:
    """Count the minutes of each queue again from its start on, before `end`; keep all others."""
    draft = builder.draft
    first = {queue: _day(start) for queue, start in starts.items()}
    late = [file for file in events if _is_late(file, min(starts.values()), min(first.values()))]
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


def _is_late(file: Path, start: int, day: str) -> bool:
    """Tell whether any event in a file of the table can be from `start` (ms) on."""
    return file.parent.name.partition("=")[2] >= day and latest_time([file], "at") >= start


def _join_ids(builder: TableBuilder, new: list[Path]) -> None:
    """Join the ids that ended with what was known of them; an id lies with the day of its latest end."""
    draft = builder.draft
    known = draft.before.files("ids")
    single = builder.use_one_task(new, _all_files(known))
    fresh = ids_from(builder.read("events", new, single=single))
    old = builder.read("ids", _all_files(known), single=single)
    moved = old.join(fresh.select("queue", "id"), ["queue", "id"], "left_semi")
    both = union(moved.select(*PARTITION_COLUMNS), fresh.select(*PARTITION_COLUMNS), single=single)
    touched = [TablePartition(row["queue"], str(row["date"])) for row in both.distinct().collect()]
    if touched:
        files_ = [file for part in touched for file in known.get(part, ())]
        builder.write(
            "ids",
            merge_ids(builder.read("ids", files_, single=single), fresh, single=single),
            is_clustered=single,
        )
        draft.replace("ids", touched, draft.staging("ids"))


def _compact(builder: TableBuilder, table: str) -> None:
    """Make one file of the many small ones of a partition."""
    draft = builder.draft
    if files := draft.files_to_compact(table):
        single = builder.use_one_task(files)
        rows, name = builder.read(table, files, single=single), f"{table}-merged"
        whole = rows if single else rows.repartition(*PARTITION_COLUMNS)
        builder.write(name, whole, table=table, is_clustered=True)
        draft.compact(table, files, draft.staging(name))


def _all_files(files: Mapping[TablePartition, Iterable[Path]]) -> list[Path]:
    return [file for files_ in files.values() for file in files_]


def _between(parts: Iterable[TablePartition], first: str, last: str) -> list[TablePartition]:
    return [part for part in parts if first <= part.date <= last]


def _by_queue_name(starts: Mapping[str, int], state: WarehouseState) -> dict[str, int]:
    """Return what is told by queue under the queues' own names."""
    return {state.names.get(queue, queue): start for queue, start in starts.items()}


def _minute_ms(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    at = int(moment.timestamp() * 1000)
    return at - at % MINUTE


def _day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
