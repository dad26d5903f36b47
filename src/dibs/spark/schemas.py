"""The columns of the tables `jobs`, `outcomes`, `events` and `runs`: written once, read by Spark and Arrow.

Times are timestamps in UTC, exact to the millisecond. What a storage has no value for is null. Offsets,
ids, ranges and counts are the contract's own (docs/explanation/contract.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from dibs.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Table = Literal["jobs", "outcomes", "events", "runs"]
Kind = Literal["text", "bytes", "integer", "long", "flag", "time", "texts"]

TABLES: Final = get_args(Table)


class Column(NamedTuple):
    """One column. A `texts` maps text to text; a `time` is a timestamp in UTC."""

    name: str
    kind: Kind
    nullable: bool = True


def _required(kind: Kind, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, nullable=False) for name in names)


def _optional(kind: Kind, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name in names)


# Payloads and results are opaque bytes; where they are JSON, the same as text stands beside them.
_DATA: Final = (
    *_optional("bytes", "payload"),
    *_optional("text", "payload_json"),
    *_optional("texts", "attributes"),
    *_optional("integer", "priority"),
)
_COUNTS: Final = _required("integer", "attempts", "retries", "stalls", "timeouts")
_RANGE: Final = (*_required("long", "first", "revision"), *_required("integer", "enqueues"))
_ERROR: Final = _optional("text", "error_type", "error_message", "error_traceback")

COLUMNS: Final[dict[Table, tuple[Column, ...]]] = {
    # One row for the current of an id, and one for its successor, if any.
    "jobs": (
        # `state` is waiting, active or blocked: scheduled is waiting with run_at in the future.
        *_required("text", "queue", "id", "state"),
        *_DATA,
        *_required("time", "run_at", "enqueued_at"),
        *_required("long", "seq"),
        *_RANGE,
        *_COUNTS,
        *_ERROR,
        # What only an active job has.
        *_optional("long", "fence"),
        *_optional("text", "holder"),
        *_optional("time", "claimed_at"),
        *_optional("text", "progress"),
        *_optional("flag", "handed_off", "cancel_requested"),
        # What only a fail job has.
        *_optional("text", "origin_queue", "origin_id"),
    ),
    "outcomes": (
        # `kind` is completed, failed or cancelled.
        *_required("text", "queue", "id", "kind"),
        *_optional("bytes", "result"),
        *_optional("text", "result_json"),
        *_ERROR,
        *_required("long", "fence"),
        *_RANGE,
        *_COUNTS,
        *_optional("time", "enqueued_at", "run_at", "claimed_at"),
        *_required("time", "ended_at"),
        # Null: kept for ever.
        *_optional("time", "expires_at"),
        *_optional("text", "holder"),
        # Null where the end does not keep them.
        *_DATA,
        *_optional("text", "origin_queue", "origin_id"),
    ),
    "events": (
        *_required("text", "queue", "offset", "kind"),
        # Null for what happened to the queue itself.
        *_optional("text", "id"),
        *_required("time", "at"),
        # 0: it was not claimed.
        *_required("integer", "attempt"),
        *_optional("long", "fence"),
        *_optional("time", "enqueued_at", "run_at", "claimed_at", "finished_at"),
        *_optional("text", "holder"),
        *_optional("long", "first", "revision"),
        *_optional("integer", "enqueues"),
        *_ERROR,
    ),
    # One row for each attempt that ended, made of the events at level `runs`.
    "runs": (
        *_required("text", "queue", "offset", "id"),
        *_required("integer", "attempt"),
        *_required("long", "fence"),
        # completed, failed, cancelled, retried, stalled, timed_out or released.
        *_required("text", "end"),
        # `due_at` is the later of run_at and enqueued_at.
        *_required("time", "enqueued_at", "due_at", "claimed_at", "finished_at"),
        # Milliseconds from due to claimed, and from claimed to finished.
        *_required("long", "wait_ms", "run_ms"),
        *_required("text", "holder"),
        *_ERROR,
        *_RANGE,
    ),
}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a table, in order. Raises Refused for a table there is not."""
    for name, found in COLUMNS.items():
        if name == table:
            return found
    raise Refused(f"there is no table {table!r:.80}; there are {', '.join(TABLES)}", field="table")


def struct_type(table: str) -> StructType:
    """Return a table's schema as Spark has it. Raises Refused for a table there is not."""
    from pyspark.sql import types as t  # noqa: PLC0415 - whoever only wants the names needs no Spark

    kinds: dict[Kind, t.DataType] = {
        "text": t.StringType(),
        "bytes": t.BinaryType(),
        "integer": t.IntegerType(),
        "long": t.LongType(),
        "flag": t.BooleanType(),
        "time": t.TimestampType(),
        "texts": t.MapType(t.StringType(), t.StringType(), valueContainsNull=False),
    }
    return t.StructType([t.StructField(c.name, kinds[c.kind], c.nullable) for c in columns(table)])


def arrow_schema(table: str) -> pa.Schema:
    """Return the same schema as Arrow has it. Raises Refused for a table there is not."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    kinds: dict[Kind, pa.DataType] = {
        "text": pa.string(),
        "bytes": pa.binary(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("us", tz="UTC"),
        "texts": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
    }
    return pa.schema([pa.field(c.name, kinds[c.kind], c.nullable) for c in columns(table)])
