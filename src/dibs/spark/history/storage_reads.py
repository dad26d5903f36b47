"""The reads of an increment from the storage: a plan of its logs, the events, and the live jobs.

The live jobs are read first, and the ends of the logs are fixed afterwards. A job that ends
between these two steps is then in both results, and its revision range and fence (the number of its claim)
identify it. In the opposite order, such a job could be missing from both.

Jobs that ended are not read, however many outcomes the storage keeps. The reader lists one state after
the other. Jobs that change their state during the read are found through the log.

The key, the flow and chosen attributes of a job are read from its record, in the increment that reads the
event. A record is that of an event if its range of revisions is the same: then no enqueue has replaced the
data of the job since. So a value is exact or missing. docs/reference/warehouse.md says when it is missing.

A read of the records takes longer than the read of the events, so without chosen attributes only the ids that
may have a key or a flow are read: all ids of a queue with a limit by key, and the ids of the nodes of flows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.events import LogEvent
from dibs.model.job import Job, JobData, Slot, Successor
from dibs.model.requests import Settings, StartRate
from dibs.model.results import Counts, EventPage, ExportRecord, State
from dibs.model.wakeup import flow_of
from dibs.model.worker_record import without_reserved
from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.tables import JOB_COLUMNS, table_schema
from dibs.spark.schemas import arrow_schema
from dibs.spark.source.pages import PAGE, QueuePart, log_pages, offset_ranges, record_pages
from dibs.spark.source.record_columns import to_record_batch

#: The advice in the errors for a warehouse of another storage.
ADOPT: Final = (
    "Use another folder for it; or, if the jobs were moved to it, continue this warehouse once with --adopt"
)


class LogMark(Struct, frozen=True, kw_only=True):
    """An event that an increment has read: the first one behind `after` in the log of a queue.

    A storage that still has it is the storage of the warehouse, whatever its URL is now.
    """

    queue: str
    after: str
    offset: str
    #: Time of the event, ms.
    at: int


class ReadPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The live jobs of a queue, or a range of its log: behind `after` (None: from the oldest event on).

    Sent to the tasks of Spark as JSON, in an option of the data source.
    """

    queue: str
    after: str | None = None
    #: End of the range; None for the live jobs.
    until: str | None = None
    #: False if the part has more than one page of events.
    is_short: bool = True
    #: True if the queue has a limit by key (per_key or key_rate), so that its jobs may have keys.
    has_keys: bool = False
    #: Names of the attributes of jobs that the events get.
    attributes: tuple[str, ...] = ()
    #: False if the queue has no log.
    is_logged: bool = True


class ReadPlan(Struct, frozen=True, kw_only=True):
    """The log ranges that one increment reads."""

    ranges: tuple[ReadPart, ...]
    #: Queue -> offset at which the next increment starts.
    offsets: dict[str, str]
    #: Queues with events that were trimmed before they were read.
    gaps: tuple[str, ...]
    #: Queue -> its limit on the starts of runs, if it has one.
    rates: dict[str, StartRate]
    #: The newest event that was seen, or None without a new event.
    mark: LogMark | None = None


def source_name(url: str) -> str:
    """Return a storage's URL without secrets and with its prefix: each prefix is a separate storage."""
    shown = run_in_thread(lambda: _display_url(url))
    prefix = dict(parse_qsl(url.partition("?")[2])).get("prefix")
    if prefix is None or "prefix=" in shown:
        return shown
    return f"{shown}{'&' if '?' in shown else '?'}prefix={prefix}"


def _display_url(url: str) -> str:
    with StorageConnection(url) as connection:
        return connection.storage.url


def plan_live(url: str, queues: Iterable[str] = (), unread: Collection[str] = ()) -> list[ReadPart]:
    """Return the live jobs of the queues; without `queues`, of all queues but those in `unread`.

    A queue without live jobs is left out: to list it takes five calls, and `counts` one for many queues.
    """

    def plan() -> list[ReadPart]:
        with StorageConnection(url) as connection:
            infos = without_reserved(connection.run(connection.storage.queues()))
            levels = {info.name: info.settings.log_level for info in infos}
            names = sorted(set(queues) or levels.keys() - set(unread))
            counts: dict[str, Counts] = {}
            for begin in range(0, len(names), PAGE):
                counts |= connection.run(connection.storage.counts(names[begin : begin + PAGE]))
        return [
            ReadPart(queue=name, is_logged=levels.get(name, "off") != "off")
            for name in names
            if counts[name].waiting or counts[name].active or counts[name].blocked
        ]

    return run_in_thread(plan)


def plan_read(
    url: str,
    offsets: Mapping[str, str],
    queues: Iterable[str] = (),
    *,
    tasks: int = 1,
    attributes: tuple[str, ...] = (),
) -> ReadPlan:
    """Return the ranges of the logs behind `offsets`; without `queues`, of all queues.

    A log with many new events is split into several ranges. Raise Refused if a log ends before its
    offset: then it is not the log that earlier increments have read.
    """
    return run_in_thread(lambda: _plan_read(url, offsets, set(queues), tasks, attributes))


def _plan_read(
    url: str, offsets: Mapping[str, str], queues: set[str], tasks: int, attributes: tuple[str, ...]
) -> ReadPlan:
    found: list[ReadPart] = []
    gaps, new_offsets = [], dict(offsets)
    mark: LogMark | None = None
    with StorageConnection(url) as connection:
        infos = without_reserved(connection.run(connection.storage.queues()))
        keyed = {info.name for info in infos if _has_key_limit(info.settings)}
        names = sorted(queues or {info.name for info in infos})
        for queue in names:
            after = offsets.get(queue) or None
            until = connection.log_end(queue)
            if after is not None and until < after:
                raise Refused(
                    f"the log of queue {queue!r} ends before the offset that this warehouse has read: the "
                    f"storage was emptied, or is another one. {ADOPT}",
                    field="warehouse",
                )
            if not until or until == after:
                continue
            page = connection.run(connection.storage.events(queue, after=after, limit=PAGE))
            if page.fell_off and after is not None:
                gaps.append(queue)
                after = None
            seen = _last_mark(queue, after, page)
            mark = seen if mark is None or (seen is not None and seen.at > mark.at) else mark
            is_short = page.offset >= until
            log = ReadPart(
                queue=queue,
                after=after,
                until=until,
                is_short=is_short,
                has_keys=queue in keyed,
                attributes=attributes,
            )
            found += _split_range(connection, log, tasks)
            new_offsets[queue] = until
    return ReadPlan(
        ranges=tuple(found),
        offsets=new_offsets,
        gaps=tuple(gaps),
        rates={info.name: rate for info in infos if (rate := info.settings.rate) is not None},
        mark=mark,
    )


def _last_mark(queue: str, after: str | None, page: EventPage) -> LogMark | None:
    """Return the last event of a page that was read behind `after`, which is None for the start of a log."""
    if not page.events:
        return None
    # Behind the empty offset, a log says whether its oldest event was trimmed.
    before = after or ""
    if len(page.events) > 1:
        before = page.events[-2][0]
    offset, event = page.events[-1]
    return LogMark(queue=queue, after=before, offset=offset, at=event.at)


def find_mark(url: str, mark: LogMark) -> bool | None:
    """Return whether a storage has the event of a mark. None means that its log was trimmed behind it."""

    def find() -> bool | None:
        with StorageConnection(url) as connection:
            try:
                page = connection.run(connection.storage.events(mark.queue, after=mark.after, limit=1))
            except Refused:
                # The storage is of another kind, whose offsets have another form.
                return False
            if page.fell_off:
                return None
            return [(mark.offset, mark.at)] == [(offset, event.at) for offset, event in page.events]

    return run_in_thread(find)


def _has_key_limit(settings: Settings) -> bool:
    return settings.per_key is not None or settings.key_rate is not None


def _split_range(connection: StorageConnection, log: ReadPart, tasks: int) -> list[ReadPart]:
    if log.is_short or log.until is None:
        return [log]
    parts = offset_ranges(connection, log.queue, log.after, log.until, tasks)
    return [replace(log, after=after, until=until) for after, until in parts]


def part_batches(connection: StorageConnection, part: ReadPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part page by page: those of `events`, or those of `live-read`."""
    if part.until is not None:
        yield from _event_batches(connection, part)
        return
    for seen, records in enumerate(live_record_pages(connection, part.queue, is_logged=part.is_logged)):
        if rows := [row for record in records for row in live_rows(part.queue, record, seen)]:
            yield _live_batch(rows)


def _live_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    schema = table_schema("live-read")
    columns = [
        pa.array(values, _MILLISECONDS if pa.types.is_timestamp(field.type) else field.type).cast(field.type)
        for field, values in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


Row = tuple[Any, ...]
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")

#: States in the order in which jobs pass through them, so a job that only moves forward is listed at least
#: once.
LISTING_ORDER: Final[tuple[State, ...]] = ("blocked", "waiting", "active")


def live_record_pages(
    connection: StorageConnection, queue: str, *, is_logged: bool
) -> Iterator[Sequence[ExportRecord]]:
    """Yield pages of records that contain every live job of a queue.

    If an id comes twice, its last record counts. A listing can miss a live job only if the job returned
    to waiting or was promoted from successor to current job during the read. Such a change ends an
    attempt, which the log records. So all ids with events since the start are read once more.

    On Postgres the log may lag behind a transaction that stays open. Then the next increment reads the
    job, and counts the minutes since its enqueue again.

    If the log is off (`is_logged` is false), or events were trimmed during the read, all ids of the
    queue are read.
    """
    if not is_logged:
        yield from record_pages(connection, QueuePart(queue))
        return
    since = connection.log_end(queue) or None
    for state in LISTING_ORDER:
        yield from record_pages(connection, QueuePart(queue, state=state))
    until = connection.log_end(queue)
    if connection.run(connection.storage.events(queue, after=since, limit=1)).fell_off:
        yield from record_pages(connection, QueuePart(queue))
        return
    for page in log_pages(connection, QueuePart(queue, after=since, until=until), gaps=True):
        yield from record_pages(
            connection, QueuePart(queue, ids=tuple({event.id for _, event in page if event.id}))
        )


def live_rows(queue: str, record: ExportRecord, seen: int) -> Iterator[Row]:
    """Yield the rows of the current job of an id and of its successor, if they exist."""
    if (job := record.slot.current) is not None:
        run = job.run
        fence, claimed = (run.fence, run.claimed_at) if run else (None, None)
        state = "active" if run else "waiting"
        times = (job.enqueued_at, _due_time(job), claimed)
        yield (queue, job.id, state, job.first, fence, *times, *_data_columns(job.data), seen)
    if (blocked := record.slot.successor) is not None:
        times = (blocked.enqueued_at, _due_time(blocked), None)
        yield (queue, record.id, "blocked", blocked.first, None, *times, *_data_columns(blocked.data), seen)


def _data_columns(data: JobData) -> Row:
    """Return the key for the limits of the queue, the flow of the job, and the size of its memo."""
    return (data.key, flow_of(data.attributes), None if data.memo is None else len(data.memo))


def _due_time(job: Job | Successor) -> int:
    return max(job.run_at, job.enqueued_at)


#: The id of a node that its flow has made: the id of the flow, a number in base 36, and that of the node.
NODE_ID: Final = re.compile(r".+/[0-9a-z]+/[0-9]+", re.DOTALL)
#: Records in memory at once. A result of an outcome may have 1 MiB.
RECORDS: Final = 100

#: Id, first and last revision of a job -> its values of JOB_COLUMNS.
KnownJob = tuple[str | None, str | None, dict[str, str] | None]
KnownJobs = dict[tuple[str, int, int], KnownJob]


def _event_batches(connection: StorageConnection, log: ReadPart) -> Iterator[pa.RecordBatch]:
    schema, logged = table_schema("events-read"), arrow_schema("events")
    part = QueuePart(log.queue, after=log.after, until=log.until)
    for page in log_pages(connection, part, gaps=False):
        if not page:
            continue
        batch = to_record_batch("events", log.queue, page, logged)
        known = _read_jobs(connection, log, page)
        added = [_job_column(page, known, index) for index, _ in enumerate(JOB_COLUMNS)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


def _job_column(page: Sequence[tuple[str, LogEvent]], known: KnownJobs, index: int) -> pa.Array:
    kind = table_schema("events-read").field([*JOB_COLUMNS][index]).type
    if not known:
        return pa.nulls(len(page), kind)
    jobs = (known.get((event.id, event.first, event.revision)) for _, event in page)
    values: list[Any] = [None if job is None else job[index] for job in jobs]
    if pa.types.is_map(kind):
        values = [None if value is None else [*value.items()] for value in values]
    return pa.array(values, kind)


def _read_jobs(
    connection: StorageConnection, log: ReadPart, page: Sequence[tuple[str, LogEvent]]
) -> KnownJobs:
    every = log.has_keys or log.attributes
    ids = (event.id for _, event in page if event.id)
    # Most ids have no slash, and a search for one takes less time than the pattern.
    wanted = [*dict.fromkeys(id for id in ids if every or ("/" in id and NODE_ID.fullmatch(id)))]
    known: KnownJobs = {}
    for begin in range(0, len(wanted), RECORDS):
        part = QueuePart(log.queue, ids=tuple(wanted[begin : begin + RECORDS]))
        for records in record_pages(connection, part):
            for record in records:
                known.update(_jobs_in(record.id, record.slot, log.attributes))
    return known


def _jobs_in(id: str, slot: Slot, names: Sequence[str]) -> KnownJobs:
    """Return the jobs of an id: the current one, its successor, and the one that ended last."""

    def values(key: str | None, attributes: Mapping[str, bytes]) -> KnownJob:
        chosen = {name: attributes[name].decode() for name in names if name in attributes} if names else None
        return key, flow_of(attributes), chosen

    found = {
        (id, part.first, part.revision): values(part.data.key, part.data.attributes)
        for part in (slot.current, slot.successor)
        if part is not None
    }
    if (ended := slot.outcome) is not None:
        key = None if ended.data is None else ended.data.key
        found[id, ended.first, ended.revision] = values(key, ended.kept_attributes)
    return found
