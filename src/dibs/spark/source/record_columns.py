"""The columns of stored records: their values, and masks of the rows that filters select.

Only the requested columns are made. A tuple for each row, as an intermediate form, took most of the time of a
read of two columns. This module does not need pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dibs.model.events import AttemptKind, LogEvent
from dibs.model.job import ActiveRun, Job, JobData, Outcome, Successor
from dibs.model.results import ExportRecord
from dibs.model.wakeup import flow_of
from dibs.spark.arrow_types import ARROW_TYPES

if TYPE_CHECKING:
    from dibs.spark.source.pushdown import Predicate

_COMPARISONS: Final = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}


def passing_mask(predicate: Predicate, values: pa.Array) -> pa.Array:
    """Return for each value whether it passes; as in SQL, a comparison with null is false."""
    if predicate.operator_name == "IsNull":
        return values.is_null()
    if predicate.operator_name == "IsNotNull":
        return values.is_valid()
    if predicate.column.kind == "time":
        # A literal is a number of ms, which may have a fraction.
        values = pc.divide(values.cast(pa.int64()), 1000)
    if predicate.operator_name == "In":
        literals = [value for value in predicate.value if value is not None]
        found = [pc.equal(values, literal) for literal in literals]
        mask = found[0] if found else pa.repeat(False, len(values))  # noqa: FBT003
        for other in found[1:]:
            mask = pc.or_(mask, other)
    elif predicate.value is None:
        mask = pa.repeat(False, len(values))  # noqa: FBT003
    else:
        mask = _COMPARISONS[predicate.operator_name](values, predicate.value)
    return cast("pa.Array", pc.fill_null(mask, False))  # noqa: FBT003


#: An id or an offset, and the job, outcome or event with it: the source of one row.
Item = tuple[str, Any]
#: Function that returns the values of a column, of the ids or offsets and of the other parts of items.
_Column = Callable[[Sequence[str], Sequence[Any]], Iterable[Any]]

#: Kinds of events that end an attempt. Only these make rows of the table `runs`.
ATTEMPT_KINDS: Final = frozenset(get_args(AttemptKind))
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")

#: Raises one of NO_JSON for bytes that are no JSON.
validate_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def json_or_none(raw: bytes | None) -> str | None:
    """Return stored bytes as text if they are valid JSON, else None."""
    if raw is None:
        return None
    try:
        validate_json(raw)
        return raw.decode()
    except NO_JSON:
        return None


# -- items -------------------------------------------------------------------------------------------


def _jobs(records: Iterable[ExportRecord]) -> list[Item]:
    """Return the current job of each id and its successor, if they exist."""
    return [
        (record.id, part)
        for record in records
        for part in (record.slot.current, record.slot.successor)
        if part is not None
    ]


def _outcomes(records: Iterable[ExportRecord]) -> list[Item]:
    """Return the outcomes that are kept."""
    return [(record.id, record.slot.outcome) for record in records if record.slot.outcome is not None]


def _runs(events: Iterable[tuple[str, LogEvent]]) -> list[Item]:
    """Return the events that ended an attempt. A job cancelled before its claim had none."""
    return [
        (offset, event)
        for offset, event in events
        if event.kind in ATTEMPT_KINDS
        and event.attempt
        and event.claimed_at is not None
        and event.finished_at is not None
    ]


#: Table -> the function that returns the items of a page of records or of events.
ITEMS: Final[dict[str, Callable[[Any], Sequence[Item]]]] = {
    "jobs": _jobs,
    "outcomes": _outcomes,
    "events": list,
    "runs": _runs,
}

# -- columns that several tables share ---------------------------------------------------------------


def _keys(keys: Sequence[str], _parts: Sequence[Any]) -> Iterable[Any]:
    return keys


def _field(name: str) -> _Column:
    get = attrgetter(name)
    return lambda _keys, parts: map(get, parts)


def _fields(*names: str) -> dict[str, _Column]:
    return {name: _field(name) for name in names}


def _set_fields(*names: str) -> dict[str, _Column]:
    """Return columns with None for 0 and for an empty text, which mean that there is no value."""
    return {name: _set_field(name) for name in names}


def _set_field(name: str) -> _Column:
    get = attrgetter(name)
    return lambda _keys, parts: [value or None for value in map(get, parts)]


def _parts_of(whole: str, **names: str) -> dict[str, _Column]:
    """Return columns with fields of the field `whole`, or None where a part has no such field or value."""
    return {name: _part_of(whole, field) for name, field in names.items()}


def _part_of(whole: str, name: str) -> _Column:
    get = attrgetter(name)
    return lambda _keys, parts: [
        None if (found := getattr(part, whole, None)) is None else get(found) for part in parts
    ]


def _job_field(name: str, default: Any) -> _Column:
    """Return a column of a field that a successor does not have."""
    return lambda _keys, parts: [getattr(part, name, default) for part in parts]


def _with_run(make: Callable[[ActiveRun], Any]) -> _Column:
    return lambda _keys, parts: [
        None if (run := getattr(part, "run", None)) is None else make(run) for part in parts
    ]


def _with_data(make: Callable[[JobData], Any]) -> _Column:
    return lambda _keys, parts: [None if part.data is None else make(part.data) for part in parts]


def _attribute_items(attributes: Mapping[str, bytes]) -> list[tuple[str, str]]:
    return [(name, raw.decode()) for name, raw in attributes.items()]


def _state(part: Job | Successor) -> str:
    if isinstance(part, Successor):
        return "blocked"
    return "active" if part.run else "waiting"


def _outcome_attributes(outcome: Outcome) -> list[tuple[str, str]] | None:
    if outcome.data is not None:
        return _attribute_items(outcome.data.attributes)
    return _attribute_items(outcome.kept_attributes) if outcome.kept_attributes else None


def _outcome_flow(outcome: Outcome) -> str | None:
    if outcome.data is not None:
        return flow_of(outcome.data.attributes)
    return flow_of(outcome.kept_attributes) if outcome.kept_attributes else None


def _progress(run: ActiveRun) -> str | None:
    return None if run.progress is None else run.progress.decode()


def _due_at(event: LogEvent) -> int:
    return max(event.run_at, event.enqueued_at)


def _waits(_keys: Sequence[str], events: Sequence[Any]) -> list[int]:
    return [event.claimed_at - _due_at(event) for event in events]


def _run_times(_keys: Sequence[str], events: Sequence[Any]) -> list[int]:
    return [event.finished_at - event.claimed_at for event in events]


_COUNTS: Final = ("attempts", "retries", "stalls", "timeouts")
_REVISIONS: Final = ("first", "revision", "enqueues")
_ERRORS: Final = _parts_of("error", error_type="type", error_message="message", error_traceback="traceback")
_ORIGINS: Final = _parts_of("origin", origin_queue="queue", origin_id="id")
_PAYLOADS: Final[dict[str, _Column]] = {
    "payload": _with_data(attrgetter("payload")),
    "payload_json": _with_data(lambda data: json_or_none(data.payload)),
    "priority": _with_data(attrgetter("priority")),
    "key": _with_data(attrgetter("key")),
    "memo_bytes": _with_data(lambda data: None if data.memo is None else len(data.memo)),
}

# -- tables ------------------------------------------------------------------------------------------

_COLUMNS: Final[dict[str, dict[str, _Column]]] = {
    "jobs": {
        "id": _keys,
        "state": lambda _keys, parts: map(_state, parts),
        **_PAYLOADS,
        "attributes": _with_data(lambda data: _attribute_items(data.attributes)),
        "flow": _with_data(lambda data: flow_of(data.attributes)),
        **_fields("run_at", "enqueued_at", "seq", *_REVISIONS),
        **{name: _job_field(name, 0) for name in _COUNTS},
        **_ERRORS,
        **_parts_of("run", fence="fence", holder="holder", claimed_at="claimed_at"),
        "progress": _with_run(_progress),
        "handed_off": _with_run(lambda run: run.lease is None),
        "cancel_requested": _with_run(attrgetter("cancel_requested")),
        **_ORIGINS,
    },
    "outcomes": {
        "id": _keys,
        **_fields("kind", "result"),
        "result_json": lambda _keys, outcomes: [json_or_none(outcome.result) for outcome in outcomes],
        **_ERRORS,
        **_fields("fence", *_REVISIONS, *_COUNTS),
        **_set_fields("enqueued_at", "run_at"),
        **_fields("claimed_at", "ended_at", "expires_at"),
        **_set_fields("holder"),
        **_PAYLOADS,
        "attributes": lambda _keys, outcomes: map(_outcome_attributes, outcomes),
        "flow": lambda _keys, outcomes: map(_outcome_flow, outcomes),
        **_ORIGINS,
    },
    "events": {
        "offset": _keys,
        **_fields("kind", "at", "attempt", "claimed_at", "finished_at", "result"),
        **_set_fields("id", "fence", "enqueued_at", "run_at", "holder", *_REVISIONS),
        **_ERRORS,
    },
    "runs": {
        "offset": _keys,
        **_fields("id", "attempt", "fence", "enqueued_at", "claimed_at", "finished_at", "holder"),
        "end": _field("kind"),
        "due_at": lambda _keys, events: map(_due_at, events),
        "wait_ms": _waits,
        "run_ms": _run_times,
        **_ERRORS,
        **_fields(*_REVISIONS),
    },
}


def passing_items(
    table: str, queue: str, items: Sequence[Item], predicates: Iterable[Predicate]
) -> Sequence[Item]:
    """Return the items whose rows pass all predicates."""
    for predicate in predicates:
        field = pa.field(predicate.column.name, ARROW_TYPES[predicate.column.kind])
        column = to_record_batch(table, queue, items, pa.schema([field])).column(0)
        items = [*compress(items, passing_mask(predicate, column).to_pylist())]
    return items


def to_record_batch(table: str, queue: str, items: Sequence[Item], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of some items as an Arrow batch with the columns of `schema`, in its order."""
    keys, parts = [key for key, _ in items], [part for _, part in items]
    arrays = [_to_arrow_array(table, queue, keys, parts, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_arrow_array(
    table: str, queue: str, keys: Sequence[str], parts: Sequence[Any], field: pa.Field
) -> pa.Array:
    if field.name == "queue":
        return pa.repeat(pa.scalar(queue, field.type), len(keys))
    values = _COLUMNS[table][field.name](keys, parts)
    if pa.types.is_timestamp(field.type):
        # The largest time of the contract, 2**53 ms, fits into 64 bits as microseconds.
        return pa.array(values, _MILLISECONDS, size=len(keys)).cast(field.type)
    return pa.array(values, field.type, size=len(keys))
