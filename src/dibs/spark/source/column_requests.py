"""The fast conversion of a batch of Arrow to enqueue requests: each column is checked and converted at once.

It takes rows with an id and valid values. `row_requests` converts all other batches row by row, with the same
result, and finds the errors.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dibs.client.options.serde import JSON
from dibs.errors import Refused
from dibs.model.limits import LATEST_TIME, LIMITS

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
