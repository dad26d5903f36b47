"""The columns of the tables `jobs`, `outcomes`, `events` and `runs`, as Spark and Arrow schemas.

Times are timestamps in UTC, exact to the millisecond. A column is null where the storage has no value.
docs/explanation/contract.md explains offsets, ids, revision ranges and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from dibs.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TableName = Literal["jobs", "outcomes", "events", "runs"]
ColumnType = Literal["text", "bytes", "integer", "long", "flag", "time", "texts"]

TABLES: Final = get_args(TableName)


class Column(NamedTuple):
    """A column of a table. The type `texts` maps text to text; `time` is a timestamp in UTC."""

    name: str
    kind: ColumnType
    nullable: bool = True


def _required(kind: ColumnType, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, nullable=False) for name in names)


def _optional(kind: ColumnType, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name in names)


# Payloads and results are opaque bytes. The `_json` columns hold the same as text if the bytes are JSON.
_DATA_COLUMNS: Final = (
    *_optional("bytes", "payload"),
    *_optional("text", "payload_json"),
    *_optional("texts", "attributes"),
    *_optional("integer", "priority"),
    # `key` is the key for the limits of the queue, `flow` the id of the flow or batch of the job, and
    # `memo_bytes` the size of the memo that a run stored for later runs.
    *_optional("text", "key", "flow"),
    *_optional("long", "memo_bytes"),
)
_COUNT_COLUMNS: Final = _required("integer", "attempts", "retries", "stalls", "timeouts")
_REVISION_COLUMNS: Final = (*_required("long", "first", "revision"), *_required("integer", "enqueues"))
_ERROR_COLUMNS: Final = _optional("text", "error_type", "error_message", "error_traceback")

COLUMNS: Final[dict[TableName, tuple[Column, ...]]] = {
    # One row for the current job of an id, and one for its successor, if it has one.
    "jobs": (
        # `state` is waiting, active or blocked. A scheduled job is waiting with `run_at` in the future.
        *_required("text", "queue", "id", "state"),
        *_DATA_COLUMNS,
        *_required("time", "run_at", "enqueued_at"),
        *_required("long", "seq"),
        *_REVISION_COLUMNS,
        *_COUNT_COLUMNS,
        *_ERROR_COLUMNS,
        # Set for active jobs only.
        *_optional("long", "fence"),
        *_optional("text", "holder"),
        *_optional("time", "claimed_at"),
        *_optional("text", "progress"),
        *_optional("flag", "handed_off", "cancel_requested"),
        # Set for jobs of a fail queue only.
        *_optional("text", "origin_queue", "origin_id"),
    ),
    "outcomes": (
        # `kind` is completed, failed or cancelled.
        *_required("text", "queue", "id", "kind"),
        *_optional("bytes", "result"),
        *_optional("text", "result_json"),
        *_ERROR_COLUMNS,
        *_required("long", "fence"),
        *_REVISION_COLUMNS,
        *_COUNT_COLUMNS,
        *_optional("time", "enqueued_at", "run_at", "claimed_at"),
        *_required("time", "ended_at"),
        # Null if the outcome is kept forever.
        *_optional("time", "expires_at"),
        *_optional("text", "holder"),
        # Null if the outcome does not keep the data of its job, except `attributes` and `flow`.
        *_DATA_COLUMNS,
        *_optional("text", "origin_queue", "origin_id"),
    ),
    "events": (
        *_required("text", "queue", "offset", "kind"),
        # Null for an event of the queue itself.
        *_optional("text", "id"),
        *_required("time", "at"),
        # 0 if the job was not claimed.
        *_required("integer", "attempt"),
        *_optional("long", "fence"),
        *_optional("time", "enqueued_at", "run_at", "claimed_at", "finished_at"),
        *_optional("text", "holder"),
        *_optional("long", "first", "revision"),
        *_optional("integer", "enqueues"),
        *_ERROR_COLUMNS,
        # Set for completed runs only, if the setting `log_results` of the queue allows the size.
        *_optional("bytes", "result"),
    ),
    # One row for each attempt that ended, made of the events that log level `runs` records.
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
        *_ERROR_COLUMNS,
        *_REVISION_COLUMNS,
    ),
}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a table in order. Raise Refused for an unknown table."""
    for name, found in COLUMNS.items():
        if name == table:
            return found
    raise Refused(f"unknown table {table!r:.80}; known tables: {', '.join(TABLES)}", field="table")


def struct_type(table: str) -> StructType:
    """Return the Spark schema of a table. Raise Refused for an unknown table."""
    from pyspark.sql import types as t  # noqa: PLC0415 - COLUMNS is used without pyspark too

    kinds: dict[ColumnType, t.DataType] = {
        "text": t.StringType(),
        "bytes": t.BinaryType(),
        "integer": t.IntegerType(),
        "long": t.LongType(),
        "flag": t.BooleanType(),
        "time": t.TimestampType(),
        "texts": t.MapType(t.StringType(), t.StringType(), valueContainsNull=False),
    }
    return t.StructType([t.StructField(c.name, kinds[c.kind], c.nullable) for c in columns(table)])


def select_columns(table: str, names: Sequence[str]) -> StructType:
    """Return the Spark schema of some columns of a table, in the order of `names`.

    Raise Refused for an unknown table or column.
    """
    from pyspark.sql import types as t  # noqa: PLC0415 - as above

    fields = {field.name: field for field in struct_type(table)}
    for name in names:
        if name not in fields:
            raise Refused(
                f"table {table} has no column {name!r}; its columns are {', '.join(fields)}", field="columns"
            )
    return t.StructType([fields[name] for name in dict.fromkeys(names)])


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table. Raise Refused for an unknown table."""
    import pyarrow as pa  # noqa: PLC0415 - COLUMNS is used without pyarrow too

    from dibs.spark.arrow_types import ARROW_TYPES  # noqa: PLC0415 - needs pyarrow

    return pa.schema([pa.field(c.name, ARROW_TYPES[c.kind], c.nullable) for c in columns(table)])
