"""Increments: `update` adds new events to a warehouse, and `rerun` counts its metrics again.

An increment appends the new events of the logs to `events`, replaces `live`, and counts `metrics` again
from the first minute that has changed. warehouse.py says what a kill in between leaves.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from attrs import field, frozen
from msgspec.structs import replace

from dibs.client.options.arguments import Seconds, check_list, duration_ms
from dibs.errors import Refused, StorageReadOnly
from dibs.spark.connection import shared_url
from dibs.spark.history.engines import Engine, EngineName, open_engine
from dibs.spark.history.queries import statement
from dibs.spark.history.storage_reads import ADOPT, find_mark, plan_live, plan_read, source_name
from dibs.spark.history.tables import MINUTE, Sources, TableRows
from dibs.spark.history.warehouse import LogGap, State, Warehouse, iso_time

#: Live jobs up to which a queue is read by each increment. One with more jobs is read again when
#: JOBS_PER_SECOND have passed for each: a job costs the server and the reader 27 us together, so that reads
#: take about 5 % of the time, however large the backlog is.
ALWAYS_READ: Final = 100_000
JOBS_PER_SECOND: Final = 2000
#: Seconds after which the folder of an increment is one that was killed.
_KILLED_AFTER: Final = 24 * 3600


@frozen(kw_only=True)
class Increment:
    """The result of one call of `update` or `rerun`."""

    #: Version of the table `metrics`; 0 if the warehouse has no rows yet.
    generation: int
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
    keep: Seconds | None = None,
    adopt: bool = False,
    attributes: Iterable[str] = (),
) -> Increment:
    """Add the events since the last increment to the warehouse, a path or a URL such as s3://bucket/history.

    The first increment reads the whole logs. Without `queues`, read all queues; the other queues keep the
    jobs that were live at their last read. With `keep`, delete events and metrics that are older, in steps
    of a day. A warehouse belongs to the storage whose log has the newest event that the warehouse has read,
    whatever its URL is. With `adopt`, another storage continues it, to which `dibs move` has moved the jobs:
    its logs are read from their start. The events and runs get the `attributes` with these names, which are
    read from the record of each job. Raise Refused for a warehouse of another storage without `adopt`,
    WarehouseBusy if another process has written to the warehouse meanwhile, StorageTooNew for a warehouse
    that a newer dibs has written, and StorageError if the storage or the warehouse cannot be read. After an
    error, repeat the call: each event is there once.

        update("redis://jobs.internal/0", "./history", attributes=["customer"])
    """
    check_list("queues", queues)
    check_list("attributes", attributes)
    storage_url, names = shared_url(url), sorted(set(queues))
    keep_ms = None if keep is None else duration_ms("keep", keep)
    tables = Warehouse(warehouse, create=True)
    state, before = tables.events.state, tables.generation
    state, is_adopted = _continue_state(tables, storage_url, adopt=adopt)
    with _work_folder(tables.location) as folder, open_engine(engine, folder) as opened:
        unread = _unread_queues(tables, opened, names, int(time.time() * 1000))
        # Read the live jobs first; storage_reads.py gives the reason.
        read_jobs = opened.read(storage_url, "live-read", plan_live(storage_url, names, unread))
        plan = plan_read(storage_url, state.offsets, names, tasks=opened.tasks, attributes=tuple(attributes))
        gaps = (*state.gaps, *(LogGap(queue=queue, at=tables.state.horizon) for queue in plan.gaps))
        mark = plan.mark or state.mark
        state = replace(state, offsets=plan.offsets, gaps=gaps, rates=plan.rates, mark=mark)
        events = 0
        if plan.ranges or is_adopted:
            rows = TableRows("events-read")
            new = opened.read(storage_url, "events-read", plan.ranges) if plan.ranges else rows
            state = replace(state, increment=state.increment + 1)
            events = new.dataset().count_rows()
            tables.events.append(state, new, increment=state.increment)
        starts = _follow_events(tables, opened, state, read_jobs, unread)
    tables.maintain(before, keep_ms, int(time.time() * 1000))
    return Increment(generation=tables.generation, events=events, starts=starts, gaps=plan.gaps)


def _continue_state(tables: Warehouse, url: str, *, adopt: bool) -> tuple[State, bool]:
    """Return the state from which an increment of a storage continues, and whether it adopts the storage."""
    state, source = tables.events.state, source_name(url)
    same_url = state.source in ("", source)
    has_mark = None if state.mark is None else find_mark(url, state.mark)
    if has_mark or (has_mark is None and same_url):
        return replace(state, source=source), False
    if adopt:
        return replace(state, source=source, offsets={}, mark=None), True
    if has_mark is None:
        reason = "may be another storage: the events by which to recognise it were trimmed from its log"
    else:
        reason = "is another storage, or was emptied: its log lacks the newest event of the warehouse"
    raise Refused(
        f"the warehouse {tables.location} holds the history of {state.source}; {source} {reason}. {ADOPT}",
        field="warehouse",
    )


def _follow_events(
    tables: Warehouse, engine: Engine, state: State, read_jobs: TableRows, unread: Sequence[str]
) -> dict[str, int]:
    """Replace `live`, and count the metrics that have changed since. Return queue -> first counted minute.

    `read_jobs` are the live jobs of all queues but those in `unread`, whose jobs stay as they were read last.
    """
    counted = tables.state
    new = tables.events.rows(f"t.increment > {counted.increment}", "increment", counted.increment + 1)
    sources: Sources = {
        "events": new,
        "live_read": read_jobs,
        "last_live": tables.live.rows() if unread else TableRows("live"),
        "unread_queues": pa.table({"queue": pa.array(unread, pa.string())}),
    }
    live = engine.write("live", statement("live", *sources, table="live"), sources)
    sources = {"events": new, "live": live}
    [(newest,)] = engine.rows(statement("horizon", *sources), sources)
    horizon = max(counted.horizon, newest or 0)
    sources = {
        **sources,
        "old_live": tables.counted_live().rows(),
        "bounds": bounds(horizon, counted.horizon),
    }
    changed = engine.rows(statement("changed", *sources), sources)
    starts = {queue: int(at - at % MINUTE) for queue, at in changed}
    if starts or state.increment != counted.increment:
        now = int(time.time() * 1000)
        state = replace(state, offsets={}, mark=None, horizon=horizon, written_at=now)
        read_at = {queue: now for queue, jobs in _count_jobs(engine, live) if jobs > ALWAYS_READ}
        read_at |= {queue: at for queue, at in tables.live.state.read_at.items() if queue in unread}
        tables.live.replace(replace(state, read_at=read_at), live)
        _count_metrics(tables, engine, state, starts)
    return starts


def _unread_queues(tables: Warehouse, engine: Engine, names: Sequence[str], now: int) -> list[str]:
    """Return the queues of `live` whose live jobs an increment does not read.

    These are all but `names`, if there are any; else those with many live jobs that were read lately.
    """
    found = _count_jobs(engine, tables.live.rows())
    if names:
        return [queue for queue, _ in found if queue not in names]
    read_at = tables.live.state.read_at
    return [
        queue
        for queue, jobs in found
        if jobs > ALWAYS_READ and now - read_at.get(queue, 0) < jobs * 1000 / JOBS_PER_SECOND
    ]


def _count_jobs(engine: Engine, live: TableRows) -> list[tuple[str, int]]:
    return engine.rows("SELECT queue, count(*) FROM live GROUP BY queue", {"live": live})


def rerun(
    warehouse: str | Path,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    engine: EngineName = "auto",
) -> Increment:
    """Count the metrics again from the events in the warehouse, without reading the storage.

    This replaces the metrics from the minute of `since` up to the minute of `until`. The result is the same
    unless a newer dibs computes a column differently.
    """
    tables = Warehouse(warehouse)
    state = tables.live.state
    begin, end = _minute_ms(since, 0), _minute_ms(until, state.horizon + MINUTE)
    if state.written_at != tables.state.written_at:
        # The last increment was killed before it counted the metrics.
        begin, end = 0, state.horizon + MINUTE
    with _work_folder(tables.location) as folder, open_engine(engine, folder) as opened:
        sources: Sources = {"events": tables.events.rows(), "live": tables.live.rows()}
        names = "SELECT queue FROM events UNION SELECT queue FROM live"
        starts = {queue: begin for (queue,) in opened.rows(names, sources)}
        if starts:
            _count_metrics(tables, opened, state, starts, end)
    return Increment(generation=tables.generation, starts=starts)


def _count_metrics(
    tables: Warehouse, engine: Engine, state: State, starts: Mapping[str, int], end: int | None = None
) -> None:
    """Replace the metrics of each queue from its start (ms) up to `end`, and keep its other minutes.

    `state` is that of `live`: events of later increments are not counted.
    """
    first = min(starts.values(), default=state.horizon)
    moment = f"TIMESTAMP '{_sql_time(first)}'"
    # A file of events without any since `first` is not opened.
    since = datetime.fromisoformat(iso_time(first))
    sources: Sources = {
        "events": tables.events.rows(f"t.at >= {moment} AND t.increment <= {state.increment}", "at", since),
        "live": tables.live.rows(),
        "old_live": TableRows("live"),
        "old_metrics": tables.metrics.rows(f"t.minute >= {moment}", "minute", since),
        "starts": pa.table(
            {
                "queue": pa.array(starts.keys(), pa.string()),
                "start": pa.array(starts.values(), pa.int64()),
            }
        ),
        "bounds": bounds(state.horizon, until=end),
    }
    sql = f"{statement('metrics', *sources, table='metrics')} ORDER BY queue, minute"
    rows = engine.write("metrics", sql, sources)
    tables.metrics.replace(
        replace(state, live=tables.live.delta.version()),
        rows,
        f"minute >= '{iso_time(first)}'",
    )


def bounds(horizon: int, before: int = 0, until: int | None = None) -> pa.Table:
    """Return the source `bounds`: one row with times in ms."""
    names = {"horizon": horizon, "before": before, "until": until}
    return pa.table({name: pa.array([value], pa.int64()) for name, value in names.items()})


def _minute_ms(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    at = int(moment.timestamp() * 1000)
    return at - at % MINUTE


def _sql_time(at: int) -> str:
    """Return a time in ms as a literal of SQL; the time zone of both engines is UTC."""
    return iso_time(at).replace("T", " ").removesuffix("Z")


@contextmanager
def _work_folder(location: str) -> Iterator[Path]:
    """Yield a new folder for the files of an increment: in a warehouse that is a folder, in its `staging`.

    All machines of a Spark cluster see it there. A killed increment leaves its folder, and Java may still
    write into it, so each increment has a folder of its own.
    """
    if "://" in location:
        with tempfile.TemporaryDirectory(prefix="dibs-history-") as name:
            yield Path(name)
        return
    staging = Path(location, "staging")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        for left in staging.iterdir():
            if time.time() - left.stat().st_mtime > _KILLED_AFTER:
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=staging))
    except OSError as error:
        raise StorageReadOnly(f"cannot write to {location}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
