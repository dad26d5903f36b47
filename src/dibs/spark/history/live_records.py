"""The live jobs of a storage, read page by page while the queues are in use.

Jobs that ended are not read, however many outcomes the storage keeps. The reader lists one state after
the other. Jobs that change their state during the read are found through the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dibs.model.job import Job, JobData, Successor
from dibs.model.results import ExportRecord, State
from dibs.model.wakeup import flow_of
from dibs.spark.connection import StorageConnection
from dibs.spark.source.pages import QueuePart, log_pages, record_pages

Row = tuple[Any, ...]

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
