"""Increments: `update` adds new events to a warehouse, and `rerun` computes its tables again.

An increment reads the new events of the logs and adds them to `events` and `runs`. It counts `metrics`
again from the first minute that has changed, and adds a row to `ids` for each id that ended. Each increment
is atomic: the tables and the log offsets change with one manifest (warehouse/draft.py), so an increment that
was killed is simply repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from attrs import field, frozen
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.spark.connection import shared_url
from dibs.spark.history.engines import (
    Engine,
    EngineName,
    bounds,
    open_engine,
    write_table,
)
from dibs.spark.history.queries import statement
from dibs.spark.history.storage_reads import ReadPlan, plan_live, plan_read, source_name
from dibs.spark.history.tables import (
    GROWING_TABLES,
    MINUTE,
    TIME_COLUMNS,
    Sources,
    TableFiles,
    latest_time,
    row_count,
)
from dibs.spark.history.warehouse.draft import WarehouseDraft
from dibs.spark.history.warehouse.manifest import (
    DataFile,
    LogGap,
    Manifest,
    WarehouseState,
    folder_name,
    generation_name,
)
from dibs.spark.history.warehouse.warehouse import Warehouse


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


def update(
    url: str | None,
    warehouse: str | Path,
    queues: Iterable[str] = (),
    *,
    engine: EngineName = "auto",
) -> Increment:
    """Add the events since the last increment to the warehouse, a path or a URL such as s3://bucket/history.

    The first increment reads the whole logs. Without `queues`, read all queues; the other queues keep the
    jobs that were live at their last read. Raise Refused for a warehouse of another storage or while
    another process writes to the warehouse, StorageTooNew for a warehouse that a newer dibs has written,
    and StorageError if the storage cannot be read. After an error the warehouse is unchanged.
    """
    storage_url, names = shared_url(url), sorted(set(queues))
    source = source_name(storage_url)
    with Warehouse(warehouse).open_draft() as draft:
        state = draft.before
        if state.source and state.source != source:
            raise Refused(
                f"the warehouse {warehouse} holds the history of {state.source}, not of {source}; "
                "choose another folder",
                field="warehouse",
            )
        with open_engine(engine, draft) as opened:
            # Read the live jobs first; `plan_read` gives the reason.
            opened.read(storage_url, "live-read", plan_live(storage_url, names))
            plan = plan_read(storage_url, state.offsets, names, tasks=opened.tasks)
            if plan.ranges:
                opened.read(storage_url, "events-read", plan.ranges)
                read = {"events_read": TableFiles("events-read", draft.staged("events-read"))}
                write_table(opened, "events", read)
            return _IncrementBuilder(draft, opened, replace(state, source=source), plan).build(names)


def rerun(
    warehouse: str | Path,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    engine: EngineName = "auto",
) -> Increment:
    """Compute runs, metrics and ids again from the events in the warehouse, without reading the storage.

    This replaces the metrics from the minute of `since` up to the minute of `until`, the runs of these
    days, and all ids. The result is the same unless a newer dibs computes a column differently.
    """
    with Warehouse.existing(warehouse).open_draft() as draft, open_engine(engine, draft) as opened:
        state = draft.before
        begin = _minute_ms(since, 0)
        end = _minute_ms(until, state.horizon + MINUTE)
        days = (_utc_day(begin), _utc_day(max(end - 1, begin)))
        events = draft.known("events")
        write_table(opened, "runs", _events(draft.local(_between(events, *days))))
        draft.replace("runs", {file.partition for file in _between(draft.known("runs"), *days)}, "runs")
        names = sorted({file.queue for table in ("events", "live") for file in draft.known(table)})
        starts = dict.fromkeys(names, begin)
        if names:
            live = draft.local(draft.known("live"))
            _count_metrics(draft, opened, (draft.local(events), live), starts, state.horizon, end)
        write_table(opened, "ids", _events(draft.local(events)))
        draft.replace("ids", {file.partition for file in draft.known("ids")}, "ids")
        return Increment(
            generation=generation_name(draft.commit(state).generation), starts=_by_queue_name(starts, state)
        )


@frozen
class _IncrementBuilder:
    """The steps of one increment, after its events and live jobs were read."""

    draft: WarehouseDraft
    engine: Engine
    state: Manifest
    plan: ReadPlan

    def build(self, queues: Sequence[str]) -> Increment:
        draft, engine, before, plan = self.draft, self.engine, self.state.horizon, self.plan
        new = draft.staged("events")
        read_jobs = TableFiles("live-read", draft.staged("live-read"))
        write_table(engine, "live", {**_events(new), "live_read": read_jobs})
        # Without `queues` all queues were read. A queue that was not read keeps its live jobs.
        read = {*map(folder_name, queues)}
        old_live = draft.known("live")
        kept = [file for file in old_live if read and file.queue not in read]
        live = [*draft.staged("live"), *draft.local(kept)]
        horizon = max(before, *(latest_time(files, *TIME_COLUMNS[table]) for table, files in (
            ("events", new), ("live", live),
        )))  # fmt: skip
        sources: Sources = {
            **_events(new),
            "live": TableFiles("live", live),
            "old_live": TableFiles("live", draft.local(old_live)),
            "bounds": bounds(horizon, before),
        }
        changed = engine.rows(statement("changed", *sources), sources)
        starts = {queue: int(at - at % MINUTE) for queue, at in changed}
        if not starts and self.state.offsets == plan.offsets and not plan.gaps:
            return Increment(generation=generation_name(draft.before.generation))
        self._append(new)
        draft.replace(
            "live", {file.partition for file in old_live} - {file.partition for file in kept}, "live"
        )
        if starts:
            _count_metrics(draft, engine, (self._events_since(starts, new), live), starts, horizon)
        return self._commit(horizon, starts, row_count(new))

    def _append(self, new: Sequence[Path]) -> None:
        """Add the new events, their runs and ids, and compact the partitions with too many small files."""
        if new:
            write_table(self.engine, "runs", _events(new))
            write_table(self.engine, "ids", _events(new))
        for table in GROWING_TABLES:
            self.draft.add(table, table)
            if files := self.draft.files_to_compact(table):
                merged = {"merged": TableFiles(table, files)}
                definition = "ids_merged" if table == "ids" else "whole"
                write_table(self.engine, table, merged, name=f"{table}-merged", definition=definition)
                self.draft.compact(table, files, f"{table}-merged")

    def _events_since(self, starts: Mapping[str, int], new: Sequence[Path]) -> list[Path]:
        """Return the files that may have events of a queue at its start or later."""
        known = [
            file
            for file in self.draft.known("events")
            if file.queue in starts and file.latest >= starts[file.queue]
        ]
        return [*self.draft.local(known), *new]

    def _commit(self, horizon: int, starts: Mapping[str, int], events: int) -> Increment:
        state, plan = self.state, self.plan
        gaps = (*state.gaps, *(LogGap(queue=queue, at=state.horizon) for queue in plan.gaps))
        after = replace(
            state,
            offsets=plan.offsets,
            horizon=horizon,
            gaps=gaps,
            names={**state.names, **plan.names},
            rates=plan.rates,
        )
        return Increment(
            generation=generation_name(self.draft.commit(after).generation),
            events=events,
            starts=_by_queue_name(starts, after),
            gaps=plan.gaps,
        )


def _count_metrics(
    draft: WarehouseDraft,
    engine: Engine,
    files: tuple[Sequence[Path], Sequence[Path]],
    starts: Mapping[str, int],
    horizon: int,
    end: int | None = None,
) -> None:
    """Replace the metrics of each queue from its start (ms) up to `end`, and keep its other minutes.

    `files` are those of the events and of the live jobs.
    """
    first = {queue: _utc_day(start) for queue, start in starts.items()}
    touched = [
        file for file in draft.known("metrics") if file.queue in first and file.date >= first[file.queue]
    ]
    events, live = files
    sources: Sources = {
        **_events(events),
        "live": TableFiles("live", live),
        "old_live": TableFiles("live", ()),
        "old_metrics": TableFiles("metrics", draft.local(touched)),
        "starts": pa.table({"queue": [*starts], "start": pa.array(starts.values(), pa.int64())}),
        "bounds": bounds(horizon, until=end),
    }
    write_table(engine, "metrics", sources)
    draft.replace("metrics", {file.partition for file in touched}, "metrics")


def _events(files: Sequence[Path]) -> Sources:
    return {"events": TableFiles("events", files)}


def _between(files: Iterable[DataFile], first: str, last: str) -> list[DataFile]:
    return [file for file in files if first <= file.date <= last]


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
