"""Values to stored bytes and back."""

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

UNSAYABLE = {
    "NaN": float("nan"),
    "infinity": {"a": [float("inf")]},
    "NUL": "a\0b",
    "NUL in a key": {"a\0": 1},
    "lone surrogate": ["\ud800"],
    "what has no form": {"a": object()},
}


@pytest.mark.parametrize("serde", SERDES, ids=lambda one: one.name)
@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda one: repr(one)[:30])
def test_a_value_comes_back_as_the_type_that_is_asked_for(serde: Serde, value: Any, kind: Any) -> None:
    assert serde.decode(serde.encode(value), kind) == value


@pytest.mark.parametrize("serde", SERDES, ids=lambda one: one.name)
@pytest.mark.parametrize("value", UNSAYABLE.values(), ids=UNSAYABLE)
def test_what_not_every_storage_can_keep_is_refused(serde: Serde, value: Any) -> None:
    """Contract 4: NaN, lone surrogates and NUL in text refused, before anything is sent."""
    with pytest.raises(Refused):
        serde.encode(value)


@pytest.mark.parametrize("serde", SERDES, ids=lambda one: one.name)
@pytest.mark.parametrize(("depth", "refused"), [(64, ""), (65, "refused"), (5000, "refused")])
def test_nesting_ends_at_64(serde: Serde, depth: int, refused: str) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]

    if refused:
        with pytest.raises(Refused):
            serde.encode(value)
    else:
        assert serde.encode(value)


def test_null_and_many_brackets_alone_are_no_reason_to_refuse() -> None:
    value: Any = {"null": None, "text": "\\u0000", "lists": [[] for _ in range(100)]}

    assert JsonSerde().decode(JsonSerde().encode(value)) == value


def test_bytes_of_another_form_are_a_value_error() -> None:
    for serde in SERDES:
        with pytest.raises(ValueError):  # noqa: PT011 - any of them; that is the promise
            serde.decode(b"\xc1{")


def test_ours_are_serdes() -> None:
    assert all(isinstance(serde, Serde) for serde in SERDES)
