"""The conversion of rows to requests column by column, compared with the conversion row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model.limits import LATEST_TIME, LIMITS
from dibs.model.request_columns import RequestColumns
from dibs.model.requests import OnConflict, Reject, Update
from dibs.spark.source import row_requests
from dibs.spark.source.row_requests import ConvertedBatch, RequestBuilder

MICROSECONDS = pa.timestamp("us", "UTC")
#: Column -> its type in Arrow, its valid values, and invalid ones.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "id": (pa.string(), ["a", "b", "ä" * 256, None], ["", "ä" * 257, "a\0b"]),
    "payload": (pa.binary(), [b"", b"1", b"\0"], [None]),
    "run_at": (
        MICROSECONDS,
        [None, 0, 1, 999, -999, LATEST_TIME * 1000],
        [-1000, LATEST_TIME * 1000 + 1],
    ),
    "priority": (pa.int32(), [None, 0, 1, -1000, 1000], [1001, -1001]),
    "key": (pa.string(), [None, "k", "ß" * 64], ["", "a\0b", "ß" * 65]),
}


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Draw the batches of a partition. A third of them have an invalid value."""
    names = ["id", "payload", *draw(st.sets(st.sampled_from(["run_at", "priority", "key"])))]
    kinds = [COLUMNS[name][0] for name in names]
    partition = []
    for size in draw(st.lists(st.integers(0, 4), max_size=3)):
        values = [[draw(st.sampled_from(COLUMNS[name][1])) for _ in range(size)] for name in names]
        if size and draw(st.integers(0, 2)) == 0:
            column = draw(st.sampled_from(range(len(names))))
            values[column][draw(st.integers(0, size - 1))] = draw(st.sampled_from(COLUMNS[names[column]][2]))
        arrays = [pa.array(one, kind) for one, kind in zip(values, kinds, strict=True)]
        partition.append(pa.record_batch(arrays, names))
    return partition


def converted(builder: RequestBuilder, partition: list[pa.RecordBatch]) -> list[Any]:
    """Return what the builder makes of each batch: the requests, their rows, and the errors."""
    found: list[ConvertedBatch] = [builder.convert(batch) for batch in partition]
    return [
        (one.columns.requests("run/0"), list(one.rows), [(row, str(why)) for row, why in one.refused])
        for one in found
    ]


@given(batches(), st.sampled_from([None, Reject(), Update(run_at="later")]))
def test_both_conversions_make_the_same_requests(
    partition: list[pa.RecordBatch], conflict: OnConflict | None
) -> None:
    fast = converted(RequestBuilder("run/0", conflict), partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_requests, "convert_columns", lambda _: None)
        slow = converted(RequestBuilder("run/0", conflict), partition)

    assert slow == fast


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, _, invalid) in COLUMNS.items() for value in invalid],
    ids=lambda one: repr(one)[:20],
)
def test_an_invalid_value_refuses_its_row(name: str, value: Any) -> None:
    values = {column: [VALID[column][0], VALID[column][1]] for column in COLUMNS} | {
        name: [VALID[name][0], value]
    }

    found = RequestBuilder("run/0", None).convert(
        batch_of(**{column: (COLUMNS[column][0], pair) for column, pair in values.items()})
    )

    [(row, refused)] = found.refused
    assert ([0], 1, name) == (list(found.rows), row, refused.field)


VALID: dict[str, list[Any]] = {
    "id": ["a", "ä" * 256],
    "payload": [b"", b"x" * LIMITS.payload],
    "run_at": [None, LATEST_TIME * 1000],
    "priority": [-1000, None],
    "key": [None, "ß" * 64],
}


def batch_of(**columns: tuple[pa.DataType, list[Any]]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def test_valid_columns_are_converted_without_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestBuilder, "_convert_rows", None)
    rows = batch_of(**{name: (COLUMNS[name][0], values) for name, values in VALID.items()})

    found = RequestBuilder("run/0", None).convert(rows).columns

    assert (VALID["id"], VALID["payload"], VALID["key"]) == (found.ids, found.payloads, found.keys)
    assert ([None, LATEST_TIME], [-1000, 0]) == (found.run_ats, found.priorities)


@pytest.mark.parametrize(
    ("kind", "values", "payloads"),
    [
        (pa.string(), ["ä", ""], ["ä".encode(), b""]),
        (pa.large_string(), ["ä", ""], ["ä".encode(), b""]),
        (pa.large_binary(), [b"1", b""], [b"1", b""]),
    ],
    ids=str,
)
def test_text_and_bytes_are_payloads(
    kind: pa.DataType, values: list[Any], payloads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestBuilder, "_convert_rows", None)
    rows = batch_of(id=(pa.string(), ["a", "b"]), payload=(kind, values))

    assert payloads == RequestBuilder("run/0", None).convert(rows).columns.payloads


def test_data_is_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestBuilder, "_convert_rows", None)
    noon = datetime(2100, 1, 1, 12, tzinfo=UTC)
    kind = pa.struct([("to", pa.string()), ("at", MICROSECONDS), ("more", pa.map_(pa.string(), pa.int32()))])
    rows = batch_of(id=(pa.string(), ["a"]), data=(kind, [{"to": "x", "at": noon, "more": [("b", 1)]}]))

    [payload] = RequestBuilder("run/0", None).convert(rows).columns.payloads

    assert {"to": "x", "at": "2100-01-01T12:00:00Z", "more": {"b": 1}} == msgspec.json.decode(payload)


def test_a_value_without_a_json_form_refuses_its_row() -> None:
    rows = batch_of(id=(pa.string(), ["a", "b"]), data=(pa.float64(), [1.5, float("nan")]))

    found = RequestBuilder("run/0", None).convert(rows)

    assert (["a"], [0]) == (found.columns.ids, list(found.rows))
    [(row, refused)] = found.refused
    assert row == 1
    assert "nan" in str(refused).lower()


def test_equal_rows_have_different_members() -> None:
    rows = batch_of(id=(pa.string(), ["a", "b", "a"]), payload=(pa.binary(), [b"1"] * 3))
    builder = RequestBuilder("run/0", None)

    members = [*builder.convert(rows).columns.members, *builder.convert(rows).columns.members]

    assert [0, 0, 1, 2, 1, 3] == [int.from_bytes(member[12:]) for member in members]
    assert 2 == len({member[:12] for member in members})


def test_columns_survive_the_spool() -> None:
    rows = batch_of(**{name: (COLUMNS[name][0], values) for name, values in VALID.items()})
    columns = RequestBuilder("run/0", Reject()).convert(rows).columns

    again = msgspec.msgpack.decode(msgspec.msgpack.encode(columns), type=RequestColumns)

    assert columns.requests("run/0") == again.requests("run/0")
