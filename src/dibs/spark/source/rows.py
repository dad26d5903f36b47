"""Rows of the tables, made from slots and events: tuples in the order of the columns, and Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
import pyarrow as pa

from dibs.flow.wakeup import flow_of
from dibs.model.events import AttemptKind, LogEvent
from dibs.model.job import NO_ATTRIBUTES, ActiveRun, Error, Job, JobData, Origin, Outcome, Successor
from dibs.model.results import ExportRecord
from dibs.spark.schemas import columns as table_columns

Row = tuple[Any, ...]

#: Kinds of events that end an attempt. Only these make rows of the table `runs`.
ATTEMPT_KINDS: Final = frozenset(get_args(AttemptKind))
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")

_validate: Final = msgspec.json.Decoder(msgspec.Raw).decode


def json_or_none(raw: bytes | None) -> str | None:
    """Return stored bytes as text if they are valid JSON, else None."""
    if raw is None:
        return None
    try:
        _validate(raw)
        return raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# -- groups of columns that several tables share -----------------------------------------------------


def _data_columns(data: JobData | None, attributes: Mapping[str, bytes] | None = None) -> Row:
    """Return payload, attributes, priority, key, flow and memo size.

    `attributes` are those of an outcome without data.
    """
    if data is None:
        kept = attributes or NO_ATTRIBUTES
        return (None, None, _attribute_items(kept) if kept else None, None, None, flow_of(kept), None)
    attributes = data.attributes
    data_columns = (data.payload, json_or_none(data.payload), _attribute_items(attributes), data.priority)
    return (*data_columns, *flow_columns(data))


def flow_columns(data: JobData) -> Row:
    """Return the key for the limits of the queue, the id of the job's flow, and the size of its memo."""
    return (data.key, flow_of(data.attributes), None if data.memo is None else len(data.memo))


def _attribute_items(attributes: Mapping[str, bytes]) -> list[tuple[str, str]]:
    return [(name, raw.decode()) for name, raw in attributes.items()]


def _error_columns(error: Error | None) -> Row:
    return (None, None, None) if error is None else (error.type, error.message, error.traceback)


def _revision_columns(part: Job | Successor | Outcome | LogEvent) -> Row:
    return (part.first, part.revision, part.enqueues)


def _count_columns(part: Job | Outcome) -> Row:
    return (part.attempts, part.retries, part.stalls, part.timeouts)


def _origin_columns(origin: Origin | None) -> Row:
    return (None, None) if origin is None else (origin.queue, origin.id)


# -- tables ------------------------------------------------------------------------------------------


def job_rows(queue: str, record: ExportRecord) -> Iterator[Row]:
    """Yield the rows of the current job of an id and of its successor, if they exist."""
    if record.slot.current is not None:
        yield _current_job_row(queue, record.slot.current)
    if record.slot.successor is not None:
        yield _successor_row(queue, record.id, record.slot.successor)


def _current_job_row(queue: str, job: Job) -> Row:
    return (
        queue,
        job.id,
        "active" if job.run else "waiting",
        *_data_columns(job.data),
        job.run_at,
        job.enqueued_at,
        job.seq,
        *_revision_columns(job),
        *_count_columns(job),
        *_error_columns(job.error),
        *_run_columns(job.run),
        *_origin_columns(job.origin),
    )


def _run_columns(run: ActiveRun | None) -> Row:
    if run is None:
        return (None,) * 6
    progress = None if run.progress is None else run.progress.decode()
    return (run.fence, run.holder, run.claimed_at, progress, run.lease is None, run.cancel_requested)


def _successor_row(queue: str, id: str, successor: Successor) -> Row:
    return (
        queue,
        id,
        "blocked",
        *_data_columns(successor.data),
        successor.run_at,
        successor.enqueued_at,
        successor.seq,
        *_revision_columns(successor),
        *(0, 0, 0, 0),
        *_error_columns(None),
        *_run_columns(None),
        *_origin_columns(None),
    )


def outcome_rows(queue: str, record: ExportRecord) -> Iterator[Row]:
    """Yield the row of the outcome of an id, if it is kept."""
    outcome = record.slot.outcome
    if outcome is None:
        return
    yield (
        queue,
        record.id,
        outcome.kind,
        outcome.result,
        json_or_none(outcome.result),
        *_error_columns(outcome.error),
        outcome.fence,
        *_revision_columns(outcome),
        *_count_columns(outcome),
        outcome.enqueued_at or None,
        outcome.run_at or None,
        outcome.claimed_at,
        outcome.ended_at,
        outcome.expires_at,
        outcome.holder or None,
        *_data_columns(outcome.data, outcome.kept_attributes),
        *_origin_columns(outcome.origin),
    )


def event_rows(queue: str, offset: str, event: LogEvent) -> Iterator[Row]:
    """Yield the row of an event."""
    yield (
        queue,
        offset,
        event.kind,
        event.id or None,
        event.at,
        event.attempt,
        event.fence or None,
        event.enqueued_at or None,
        event.run_at or None,
        event.claimed_at,
        event.finished_at,
        event.holder or None,
        event.first or None,
        event.revision or None,
        event.enqueues or None,
        *_error_columns(event.error),
        event.result,
    )


def run_rows(queue: str, offset: str, event: LogEvent) -> Iterator[Row]:
    """Yield the row of the attempt that an event ended. A job cancelled before its claim has none."""
    if (
        event.kind not in ATTEMPT_KINDS
        or not event.attempt
        or event.claimed_at is None
        or event.finished_at is None
    ):
        return
    due = max(event.run_at, event.enqueued_at)
    yield (
        queue,
        offset,
        event.id,
        event.attempt,
        event.fence,
        event.kind,
        event.enqueued_at,
        due,
        event.claimed_at,
        event.finished_at,
        event.claimed_at - due,
        event.finished_at - event.claimed_at,
        event.holder,
        *_error_columns(event.error),
        *_revision_columns(event),
    )


RECORD_ROWS: Final[dict[str, Callable[[str, ExportRecord], Iterator[Row]]]] = {
    "jobs": job_rows,
    "outcomes": outcome_rows,
}
EVENT_ROWS: Final[dict[str, Callable[[str, str, LogEvent], Iterator[Row]]]] = {
    "events": event_rows,
    "runs": run_rows,
}

# -- Arrow -------------------------------------------------------------------------------------------


def to_record_batch(table: str, rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a table as an Arrow batch with the columns of `schema`, in its order."""
    columns = list(zip(*rows, strict=True))
    indexes = {column.name: index for index, column in enumerate(table_columns(table))}
    arrays = [_to_arrow_array(columns[indexes[field.name]], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_arrow_array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        # The largest time of the contract, 2**53 ms, fits into 64 bits as microseconds.
        return pa.array(values, _MILLISECONDS).cast(kind)
    return pa.array(values, kind)
