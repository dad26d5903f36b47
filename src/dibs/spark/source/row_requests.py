"""Enqueue requests made from rows: the columns of a write, their types, and the request keys.

`convert_columns` takes a batch whose rows have an id and valid values. `RequestBuilder` converts all other
batches row by row, with the same result, and finds the errors.

The request key of a row is made of the name of its write, its partition, its id (or its content, if it has
no id) and the number of equal rows before it in the partition. So a task that runs again, or twice at once,
adds no job, in whatever order its rows come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from dibs.client.options.serde import JSON
from dibs.errors import Refused
from dibs.model.check_jobs import check_request
from dibs.model.job import NO_ATTRIBUTES, JobData, NewJob
from dibs.model.limits import LATEST_TIME, LIMITS
from dibs.model.request_columns import RequestColumns, make_member, member_text
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict, Reject
from dibs.spark.source.options import parse_conflict

#: The columns that can be converted at once. The values of the others have a form of their own in each row.
_COLUMNS: Final = frozenset(("id", "payload", "data", "run_at", "priority", "key"))


def convert_columns(batch: pa.RecordBatch) -> dict[str, list[Any] | None] | None:
    """Return the fields `ids`, `payloads`, `priorities`, `run_ats` and `keys` of RequestColumns.

    Return None for a batch with an invalid value, a null id, no rows, or a column such as attributes.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if not batch.num_rows or "id" not in columns or not columns.keys() <= _COLUMNS:
        return None
    id, run_at = columns["id"], columns.get("run_at")
    priority, key = columns.get("priority"), columns.get("key")
    valid = (
        not id.null_count
        and _is_text(id, LIMITS.id)
        and (key is None or _is_text(key, LIMITS.key))
        and (priority is None or _is_within(priority, -LIMITS.priority, LIMITS.priority))
    )
    payloads = _payloads(columns) if valid else None
    if payloads is None:
        return None
    times = None if run_at is None else to_milliseconds(run_at)
    if times is not None and not all(time is None or 0 <= time <= LATEST_TIME for time in times):
        return None
    return {
        "ids": id.to_pylist(),
        "payloads": payloads,
        "priorities": None if priority is None else pc.fill_null(priority, 0).to_pylist(),
        "run_ats": times,
        "keys": None if key is None else key.to_pylist(),
    }


def to_milliseconds(times: pa.Array) -> list[int | None]:
    """Convert microseconds to ms, rounded up, so that a job never runs early."""
    return [None if time is None else -(-time // 1000) for time in times.cast(pa.int64()).to_pylist()]


def _is_text(column: pa.Array, limit: int) -> bool:
    """Return whether each text has 1 to `limit` bytes without NUL. Null passes."""
    return (
        _is_within(pc.binary_length(column), 1, limit)
        and not pc.any(pc.match_substring(column, "\0")).as_py()
    )


def _is_within(column: pa.Array, low: int, high: int) -> bool:
    """Return whether all numbers are in a range, both ends included. Null passes."""
    found = pc.min_max(column).as_py()
    return found["min"] is None or (low <= found["min"] and found["max"] <= high)


def _payloads(columns: dict[str, pa.Array]) -> list[bytes] | None:
    """Return the payloads, or None if one is null, too large or without a JSON form."""
    if "data" in columns:
        try:
            encoded = [JSON.encode(value) for value in columns["data"].to_pylist(maps_as_pydicts="strict")]
        except (Refused, pa.ArrowException, KeyError):
            return None
        return encoded if max(map(len, encoded)) <= LIMITS.payload else None
    payload = columns["payload"]
    if payload.null_count or not _is_within(pc.binary_length(payload), 0, LIMITS.payload):
        return None
    binary = pa.large_binary() if pa.types.is_large_string(payload.type) else pa.binary()
    values: list[bytes] = (payload.cast(binary) if _is_string(payload) else payload).to_pylist()
    return values


def _is_string(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


_SparkTypes = tuple[type[t.DataType], ...]
_INTEGERS: Final[_SparkTypes] = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
#: Column of a write -> the Spark types it may have, and their description for error messages.
WRITE_COLUMNS: Final[dict[str, tuple[_SparkTypes, str]]] = {
    "id": ((t.StringType,), "string"),
    "payload": ((t.BinaryType, t.StringType), "binary or string"),
    "data": ((t.DataType,), "any type with a JSON form"),
    "run_at": ((t.TimestampType,), "timestamp (with a time zone: not timestamp_ntz)"),
    "priority": (_INTEGERS, "an integer"),
    "attributes": ((t.StructType, t.MapType), "a struct, or a map from string"),
    "key": ((t.StringType,), "string"),
    "on_conflict": ((t.StringType, t.StructType), "string or struct"),
}
#: Conflict rule of rows without an id: the generated id is equal if the row comes again, so reject it then.
_GENERATED_ID_CONFLICT: Final = Reject()

_cached_conflict: Final = lru_cache(256)(parse_conflict)


def check_columns(schema: t.StructType) -> None:
    """Raise Refused with the name of a column that cannot be enqueued."""
    for field in schema:
        if field.name not in WRITE_COLUMNS:
            raise Refused(
                f"unknown column {field.name!r}; a write takes {', '.join(WRITE_COLUMNS)}",
                field=field.name,
            )
        types, expected = WRITE_COLUMNS[field.name]
        if not isinstance(field.dataType, types) or isinstance(field.dataType, t.VariantType):
            raise Refused(
                f"column {field.name} must be {expected}, not {field.dataType.simpleString()}",
                field=field.name,
            )
        if isinstance(field.dataType, t.MapType) and field.name == "attributes":
            _check_attribute_names(field.dataType)
    names = set(schema.fieldNames())
    if len(names & {"payload", "data"}) != 1:
        raise Refused(
            "a write needs exactly one of the columns data (a value, written as JSON) and payload (bytes)",
            field="data",
        )


def _check_attribute_names(kind: t.MapType) -> None:
    if not isinstance(kind.keyType, t.StringType):
        raise Refused(
            f"the keys of attributes must be strings, not {kind.keyType.simpleString()}", field="attributes"
        )


class ConvertedBatch(NamedTuple):
    """The rows of a batch of Arrow as enqueue requests."""

    columns: RequestColumns
    #: The index in the batch of each request.
    rows: Sequence[int]
    #: The index and the error of each invalid row.
    refused: list[tuple[int, Refused]]


class RequestBuilder:
    """The builder of the enqueue requests of one partition.

    It numbers equal rows, so one builder must get all rows of the partition.
    """

    def __init__(self, key_prefix: str, on_conflict: OnConflict | None) -> None:
        self._key_prefix = key_prefix
        self._on_conflict = on_conflict
        #: Digest of a row -> how often it came.
        self._earlier: dict[bytes, int] = {}

    def convert(self, batch: pa.RecordBatch) -> ConvertedBatch:
        """Return the requests of the valid rows, and the errors of the others."""
        fields: dict[str, Any] | None = convert_columns(batch)
        if fields is None:
            return self._convert_rows(batch)
        if self._on_conflict is not None:
            fields["conflicts"] = [self._on_conflict] * batch.num_rows
        members = self._members([_digest(id.encode()) for id in fields["ids"]])
        return ConvertedBatch(RequestColumns(**fields, members=members), range(batch.num_rows), [])

    def _convert_rows(self, batch: pa.RecordBatch) -> ConvertedBatch:
        values = {name: _convert_column(name, batch.column(name)) for name in batch.schema.names}
        requests: list[tuple[EnqueueRequest, bytes]] = []
        rows: list[int] = []
        refused: list[tuple[int, Refused]] = []
        for row in range(batch.num_rows):
            try:
                requests.append(self._request({name: column[row] for name, column in values.items()}))
                rows.append(row)
            except Refused as error:
                refused.append((row, error))
        return ConvertedBatch(_to_columns(requests), rows, refused)

    def _request(self, row: Mapping[str, Any]) -> tuple[EnqueueRequest, bytes]:
        """Return the request of a row, and its member of the key set. Raise Refused."""
        data = JobData(
            payload=_encode_payload(row),
            attributes=_encode_attributes(row.get("attributes")),
            priority=row.get("priority") or 0,
            key=row.get("key"),
        )
        id, conflict = row.get("id"), _parse_row_conflict(row.get("on_conflict")) or self._on_conflict
        run_at = row.get("run_at")
        (member,) = self._members(
            [_digest(_row_content(data, run_at, conflict) if id is None else id.encode())]
        )
        request_key = f"{self._key_prefix}/{member_text(member)}"
        if id is None:
            id, conflict = request_key.replace("/", "-"), conflict or _GENERATED_ID_CONFLICT
        request = EnqueueRequest(
            job=NewJob(id=id, data=data, run_at=run_at),
            on_conflict=conflict or DEFAULT_UPDATE,
            request_key=request_key,
        )
        check_request(request)
        return request, member

    def _members(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return the members of rows with these digests, and count them."""
        earlier = self._earlier
        members = []
        for digest in digests:
            before = earlier.get(digest, 0)
            earlier[digest] = before + 1
            members.append(make_member(digest, before))
        return members


def _digest(identity: bytes) -> bytes:
    return blake2b(identity, digest_size=12).digest()


def _to_columns(requests: Sequence[tuple[EnqueueRequest, bytes]]) -> RequestColumns:
    jobs = [request.job for request, _ in requests]
    data = [job.data for job in jobs]
    return RequestColumns(
        ids=[job.id for job in jobs],
        payloads=[each.payload for each in data],
        members=[member for _, member in requests],
        priorities=[each.priority for each in data],
        run_ats=[job.run_at for job in jobs],
        keys=[each.key for each in data],
        attributes=[each.attributes for each in data],
        conflicts=[request.on_conflict for request, _ in requests],
    )


def _row_content(data: JobData, run_at: int | None, conflict: OnConflict | None) -> bytes:
    return msgspec.msgpack.encode((data, run_at, conflict))


# -- columns -----------------------------------------------------------------------------------------


def _convert_column(name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column in the form that requests need.

    Values that can be invalid are converted per row.
    """
    if name == "run_at":
        return to_milliseconds(column)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    if name == "attributes":
        # A map to strings holds JSON texts, as in the table `jobs`. Other values are encoded as JSON.
        is_json = pa.types.is_map(column.type) and pa.types.is_string(column.type.item_type)
        return [_attribute_encoders(value, _encode_text if is_json else JSON.encode) for value in values]
    return values


def _encode_text(text: str) -> bytes:
    return text.encode()


def _attribute_encoders(value: Mapping[str, Any] | None, write: Callable[[Any], bytes]) -> Any:
    """Return attributes as (name, encoder, value).

    They are encoded per row, so that an error rejects only its row.
    """
    return (
        None if value is None else [(name, write, each) for name, each in value.items() if each is not None]
    )


def _encode_attributes(
    writers: Iterable[tuple[str, Callable[[Any], bytes], Any]] | None,
) -> Mapping[str, bytes]:
    if not writers:
        return NO_ATTRIBUTES
    return {name: write(value) for name, write, value in writers} or NO_ATTRIBUTES


def _encode_payload(row: Mapping[str, Any]) -> bytes:
    if "data" in row:
        return JSON.encode(row["data"])
    payload = row["payload"]
    if payload is None:
        raise Refused("payload is null; it must be bytes. Use a column data for JSON values", field="payload")
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def _parse_row_conflict(value: Any) -> OnConflict | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        value = msgspec.json.encode({name: each for name, each in value.items() if each is not None}).decode()
    return _cached_conflict(value)
