"""The events of a log with the key and the flow of their jobs, which no log has.

Both are read from the record of the job, in the increment that reads the event. A record is that of an
event if its range of revisions is the same: then no enqueue has replaced the data of the job since. So a
value is exact or missing. docs/reference/warehouse.md says when it is missing.

A read of the records takes longer than the read of the events, so only the ids that may have a key or a
flow are read: all ids of a queue with a limit by key, and the ids that flows make for their nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.wakeup import flow_of
from dibs.spark.connection import StorageConnection
from dibs.spark.history.log_plan import LogRange
from dibs.spark.history.tables import JOB_COLUMNS
from dibs.spark.history.warehouse.names import folder_name
from dibs.spark.schemas import arrow_schema
from dibs.spark.source.pages import QueuePart, log_pages, record_pages
from dibs.spark.source.record_columns import to_record_batch

#: The id of a node that its flow has made: the id of the flow, a number in base 36, and that of the node.
NODE_ID: Final = re.compile(r".+/[0-9a-z]+/[0-9]+", re.DOTALL)
#: Records in memory at once. A result of an outcome may have 1 MiB.
RECORDS: Final = 100

#: Id, first and last revision of a job -> its key and its flow.
KnownJobs = Mapping[tuple[str, int, int], tuple[str | None, str | None]]


def event_batches(connection: StorageConnection, log: LogRange) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range, page by page, with the columns of `events` and JOB_COLUMNS."""
    part = QueuePart(log.queue, after=log.after, until=log.until)
    for page in log_pages(connection, part, gaps=False):
        if page:
            yield _event_batch(log, page, _read_jobs(connection, log, page))


def _event_batch(log: LogRange, page: Sequence[tuple[str, LogEvent]], known: KnownJobs) -> pa.RecordBatch:
    batch = to_record_batch("events", folder_name(log.queue), page, arrow_schema("events"))
    for index, column in enumerate(JOB_COLUMNS):
        batch = batch.append_column(column, _job_column(page, known, index))
    return batch


def _job_column(page: Sequence[tuple[str, LogEvent]], known: KnownJobs, index: int) -> pa.Array:
    if not known:
        return pa.nulls(len(page), pa.string())
    jobs = (known.get((event.id, event.first, event.revision)) for _, event in page)
    return pa.array([None if job is None else job[index] for job in jobs], pa.string())


def _read_jobs(
    connection: StorageConnection, log: LogRange, page: Sequence[tuple[str, LogEvent]]
) -> KnownJobs:
    ids = (event.id for _, event in page if event.id)
    # Most ids have no slash, and a search for one takes less time than the pattern.
    wanted = [*dict.fromkeys(id for id in ids if log.has_keys or ("/" in id and NODE_ID.fullmatch(id)))]
    known: dict[tuple[str, int, int], tuple[str | None, str | None]] = {}
    for begin in range(0, len(wanted), RECORDS):
        part = QueuePart(log.queue, ids=tuple(wanted[begin : begin + RECORDS]))
        for records in record_pages(connection, part):
            for record in records:
                known.update(_jobs_in(record.id, record.slot))
    return known


def _jobs_in(id: str, slot: Slot) -> KnownJobs:
    """Return the jobs of an id: the current one, its successor, and the one that ended last."""
    found = {
        (id, part.first, part.revision): (part.data.key, flow_of(part.data.attributes))
        for part in (slot.current, slot.successor)
        if part is not None
    }
    if (ended := slot.outcome) is not None:
        key = None if ended.data is None else ended.data.key
        found[id, ended.first, ended.revision] = (key, flow_of(ended.kept_attributes))
    return found
