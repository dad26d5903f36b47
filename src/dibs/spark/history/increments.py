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
from dibs.spark.door import place_of
from dibs.spark.history.footers import latest, rows_in
from dibs.spark.history.intake import Look, events_in, look, source_of
from dibs.spark.history.layers import ids_of, joined_ids, ms, runs_of, united
from dibs.spark.history.living import living_in, still_live
from dibs.spark.history.making import Making, making
from dibs.spark.history.metrics import MINUTE, changes_of_ended, changes_of_live, difference, metrics_of
from dibs.spark.history.tables import PARTITIONS
from dibs.spark.history.warehouse import Gap, Partition, State, Warehouse

#: The tables that only ever grow: their small files are merged.
GROWING: Final = ("events", "runs")


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
        with making(spark, draft) as new:
            new.write_flat("live-read", living_in(spark, place, names))
            seen = look(place, state.offsets, names, tasks=spark.sparkContext.defaultParallelism)
            return _increment(new, place, replace(state, source=source), seen)


def rerun(
    spark: SparkSession, root: Path, since: datetime | None = None, until: datetime | None = None
) -> Increment:
    """Make runs, metrics and ids again from the events in the warehouse; the storage is not asked.

    Metrics from the minute of `since` up to that of `until`, runs of the days these touch, all ids. It gives
    the same tables, unless a newer dibs counts better.
    """
    with Warehouse.existing(root).changing() as draft, making(spark, draft) as new:
        state = draft.before.state
        begin = _minute_ms(since, 0)
        end = _minute_ms(until, state.horizon + MINUTE)
        days = (_day(begin), _day(max(end - 1, begin)))
        told = draft.before.files("events")
        inside = [file for part, held in told.items() for file in held if days[0] <= part.date <= days[1]]
        new.write("runs", runs_of(new.read("events", inside, one=False)), gathered=True)
        draft.replace("runs", _between(draft.before.files("runs"), *days), draft.staging("runs"))
        names = sorted({part.queue for table in ("events", "live") for part in draft.before.files(table)})
        starts = dict.fromkeys(names, begin)
        if names:
            live = _held(draft.before.files("live"))
            _count_metrics(new, _held(told), live, starts, state.horizon, end)
        events = _held(told)
        one = new.fits_one(events)
        new.write("ids", ids_of(new.read("events", events, one=one)), gathered=one)
        draft.replace("ids", draft.before.files("ids"), draft.staging("ids"))
        return Increment(generation=draft.commit(state).generation, starts=_named(starts, state))


def _increment(made: Making, place: str, state: State, seen: Look) -> Increment:
    draft = made.draft
    if seen.stretches:
        made.write("events", events_in(made.spark, place, seen), gathered=True)
    new = made.staged("events")
    _keep_live(made, new)
    live = made.staged("live")
    horizon = max(state.horizon, latest(new, "at"), latest(live, "enqueued_at", "claimed_at"))
    starts = _starts(made, new, live, state.horizon, horizon)
    if not starts and state.offsets == seen.offsets and not seen.gaps:
        return Increment(generation=draft.before.generation)
    for table in GROWING:
        if table == "runs" and new:
            one = made.fits_one(new)
            made.write("runs", runs_of(made.read("events", new, one=one)), gathered=True)
        draft.add(table, draft.staging(table))
        _merge(made, table)
    draft.replace("live", draft.before.files("live"), draft.staging("live"))
    if starts:
        known = draft.before.files("events")
        _count_metrics(made, [*_held(known), *new], live, starts, horizon)
    if new:
        _join_ids(made, new)
    gaps = (*state.gaps, *(Gap(queue=queue, at=state.horizon) for queue in seen.gaps))
    after = replace(
        state, offsets=seen.offsets, horizon=horizon, gaps=gaps, names={**state.names, **seen.names}
    )
    return Increment(
        generation=draft.commit(after).generation,
        events=rows_in(new),
        starts=_named(starts, after),
        gaps=seen.gaps,
    )


def _keep_live(made: Making, new: list[Path]) -> None:
    """Write who is live now: those that were read, but for what the new events say of them since."""
    read = made.staged("live-read")
    one = made.fits_one(read, new)
    events = made.read("events", new, one=one)
    live = still_live(made.read("live-read", read, one=one), events)
    made.write("live", live, gathered=one)


def _starts(made: Making, new: list[Path], live: list[Path], before: int, now: int) -> dict[str, int]:
    """Return, for each queue with any, the first minute (ms) that says something else now."""
    was = _held(made.draft.before.files("live"))
    one = made.fits_one(new, live, was)
    events = made.read("events", new, one=one)
    ended = changes_of_ended(events)
    old = made.read("live", was, one=one)
    waits = changes_of_live(made.read("live", live, one=one), now)
    changed = difference(united(ended, waits, one=one), changes_of_live(old, before), one=one)
    told = events.groupBy("queue").agg(f.min(ms("at")).alias("start"))
    # Who was there at the old horizon was there in all minutes since.
    there = old.select("queue", f.lit(before).alias("start")).distinct().where(f.lit(now > before))
    every = united(changed, told, there, one=one)
    first = every.groupBy("queue").agg(f.min("start").alias("start"))
    return {row["queue"]: row["start"] - row["start"] % MINUTE for row in first.collect()}


def _count_metrics(
    made: Making,
    events: Iterable[Path],
    live: list[Path],
    starts: Mapping[str, int],
    horizon: int,
    end: int | None = None,
) -> None:
    """Count the minutes of each queue again from its start on, before `end`; keep all others."""
    draft = made.draft
    first = {queue: _day(start) for queue, start in starts.items()}
    late = [file for file in events if _is_late(file, min(starts.values()), min(first.values()))]
    files = draft.before.files("metrics")
    touched = [part for part in files if part.queue in first and part.date >= first[part.queue]]
    old = [file for part in touched for file in files[part]]
    one = made.fits_one(late, live, old)
    names = list(starts)
    known = made.local(pa.table({"queue": names, "start": [starts[name] for name in names]}), one=one)
    counted = metrics_of(
        made.read("events", late, one=one), made.read("live", live, one=one), known, horizon, one=one
    )
    is_kept = ms("minute") < f.col("start")
    if end is not None:
        counted = counted.where(ms("minute") < end)
        is_kept |= ms("minute") >= end
    kept = made.read("metrics", old, one=one).join(known, "queue").where(is_kept).drop("start")
    made.write("metrics", united(kept, counted, one=one), gathered=one)
    draft.replace("metrics", touched, draft.staging("metrics"))


def _is_late(file: Path, start: int, day: str) -> bool:
    """Tell whether any event in a file of the table can be from `start` (ms) on."""
    return file.parent.name.partition("=")[2] >= day and latest([file], "at") >= start


def _join_ids(made: Making, new: list[Path]) -> None:
    """Join the ids that ended with what was known of them; an id lies with the day of its latest end."""
    draft = made.draft
    known = draft.before.files("ids")
    one = made.fits_one(new, _held(known))
    fresh = ids_of(made.read("events", new, one=one))
    old = made.read("ids", _held(known), one=one)
    moved = old.join(fresh.select("queue", "id"), ["queue", "id"], "left_semi")
    both = united(moved.select(*PARTITIONS), fresh.select(*PARTITIONS), one=one)
    touched = [Partition(row["queue"], str(row["date"])) for row in both.distinct().collect()]
    if touched:
        held = [file for part in touched for file in known.get(part, ())]
        made.write("ids", joined_ids(made.read("ids", held, one=one), fresh, one=one), gathered=one)
        draft.replace("ids", touched, draft.staging("ids"))


def _merge(made: Making, table: str) -> None:
    """Make one file of the many small ones of a partition."""
    draft = made.draft
    if files := draft.crowded(table):
        one = made.fits_one(files)
        rows, name = made.read(table, files, one=one), f"{table}-merged"
        whole = rows if one else rows.repartition(*PARTITIONS)
        made.write(name, whole, table=table, gathered=True)
        draft.merge(table, files, draft.staging(name))


def _held(files: Mapping[Partition, Iterable[Path]]) -> list[Path]:
    return [file for held in files.values() for file in held]


def _between(parts: Iterable[Partition], first: str, last: str) -> list[Partition]:
    return [part for part in parts if first <= part.date <= last]


def _named(starts: Mapping[str, int], state: State) -> dict[str, int]:
    """Return what is told by queue under the queues' own names."""
    return {state.names.get(queue, queue): start for queue, start in starts.items()}


def _minute_ms(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    at = int(moment.timestamp() * 1000)
    return at - at % MINUTE


def _day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
