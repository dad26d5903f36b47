"""Serdes encode values to stored bytes and decode them; they refuse values that a storage cannot keep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

from dibs import Refused
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    label: str | None = None


SERDES: list[Serde] = [JsonSerde(), MessagePackSerde()]

VALUES = [
    (Point(1, "a"), Point),
    (datetime(2026, 1, 2, tzinfo=UTC), datetime),
    (UUID(int=5), UUID),
    (Decimal("1.10"), Decimal),
    (Colour.RED, Colour),
    ("png", Literal["png", "jpg"]),
    (Path("a/b"), Path),
    (b"\x00\xff", bytes),
    ({1: Point(2)}, dict[int, Point]),
    ((1, "a"), tuple[int, str]),
    (None, None),
]

REFUSED = {
    "NaN": float("nan"),
    "infinity": {"a": [float("inf")]},
    "NUL": "a\0b",
    "NUL in a key": {"a\0": 1},
    "lone surrogate": ["\ud800"],
    "unsupported type": {"a": object()},
}


@pytest.mark.parametrize("serde", SERDES, ids=lambda serde: serde.name)
@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda value: repr(value)[:30])
def test_a_value_comes_back_as_the_requested_type(serde: Serde, value: Any, kind: Any) -> None:
    assert serde.decode(serde.encode(value), kind) == value


@pytest.mark.parametrize("serde", SERDES, ids=lambda serde: serde.name)
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_that_some_storage_cannot_keep_is_refused(serde: Serde, value: Any) -> None:
    """Contract 4: NaN, lone surrogates and NUL in text are refused before the enqueue is sent."""
    with pytest.raises(Refused):
        serde.encode(value)


@pytest.mark.parametrize("serde", SERDES, ids=lambda serde: serde.name)
@pytest.mark.parametrize(("depth", "refused"), [(64, ""), (65, "refused"), (5000, "refused")])
def test_nesting_is_limited_to_64_levels(serde: Serde, depth: int, refused: str) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]

    if refused:
        with pytest.raises(Refused):
            serde.encode(value)
    else:
        assert serde.encode(value)


def test_null_escapes_and_many_flat_lists_are_accepted() -> None:
    value: Any = {"null": None, "text": "\\u0000", "lists": [[] for _ in range(100)]}

    assert JsonSerde().decode(JsonSerde().encode(value)) == value


def test_decoding_bytes_of_another_format_raises_value_error() -> None:
    for serde in SERDES:
        with pytest.raises(ValueError):  # noqa: PT011 - any ValueError; the Serde protocol promises no more
            serde.decode(b"\xc1{")


def test_both_formats_implement_the_serde_protocol() -> None:
    assert all(isinstance(serde, Serde) for serde in SERDES)
