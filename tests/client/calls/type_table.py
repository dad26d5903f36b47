"""Type hints with a value that is sent for each and the value that arrives.

docs/reference/values.md shows them. The rows need neither pydantic nor numpy, so that a program without them
can run the table. The rows for their types are in pydantic_type_table.py.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import attrs
import msgspec


class Size(enum.Enum):
    SMALL = "s"


class Corner(enum.Enum):
    TOP_LEFT = (0, 0)
    TOP_RIGHT = (1, 0)


class Sku(str):
    """An article number."""

    __slots__ = ()


class Cents(int):
    """An amount of money."""


UserId = NewType("UserId", int)


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Circle:
    x: int
    y: int = 0


@dataclass
class Note:
    """A dataclass with a field that msgspec alone refuses, and fields of its own type."""

    due: str | datetime
    replies: list[Note] = field(default_factory=list)


@attrs.frozen
class Secretive:
    _level: int = 1


class Pixel(msgspec.Struct):
    x: int


class Pair(NamedTuple):
    left: int
    right: str


class Label(TypedDict):
    text: str


class Stamp(TypedDict):
    at: str | datetime


@attrs.frozen
class Row:
    """A type hint, a value that is sent, and the value that arrives."""

    hint: Any
    sent: Any
    #: The value that arrives; by default the same as `sent`.
    arrives: Any = attrs.field(default=attrs.Factory(lambda row: row.sent, takes_self=True))


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEY = UUID(int=7)
IPV4, IPV6 = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1")

ROWS: list[Row] = [
    Row(None, None),
    Row(hint=bool, sent=True),
    Row(int, 3),
    Row(float, 1.5),
    Row(float, 3, 3.0),
    Row(str, "a"),
    Row(str, Sku("a-1"), "a-1"),
    Row(int, Cents(5), 5),
    Row(bytes, b"\xff"),
    Row(datetime, NOON),
    Row(date, date(2026, 1, 31)),
    Row(time, time(12, 30)),
    Row(timedelta, timedelta(hours=1)),
    Row(UUID, KEY),
    Row(Decimal, Decimal("0.10")),
    Row(Path, Path("a/b")),
    Row(IPV4.__class__, IPV4),
    Row(ipaddress.IPv6Network, ipaddress.ip_network("2001:db8::/32")),
    Row(Size, Size.SMALL),
    Row(Corner, Corner.TOP_RIGHT),
    Row(Literal["png", "jpg"], "png"),
    Row(Sku, Sku("a-1")),
    Row(Cents, Cents(5)),
    Row(UserId, 5),
    Row(list[int], [1, 2]),
    Row(list[int], (1, 2), [1, 2]),
    Row(tuple[int, str], (1, "a")),
    Row(set[int], {1, 2}),
    Row(frozenset[str], frozenset({"a"})),
    Row(deque[int], deque([1, 2])),
    Row(Sequence[int], [1, 2]),
    Row(Iterable[int], [1, 2]),
    Row(Iterable[int], range(3), [0, 1, 2]),
    Row(dict[int, str], {1: "a"}),
    Row(Mapping[str, date], {"a": date(2026, 1, 31)}),
    Row(Counter[str], Counter("aab")),
    Row(OrderedDict[str, int], OrderedDict(b=1, a=2)),
    Row(Point, Point(1)),
    Row(Secretive, Secretive(3)),
    Row(Pixel, Pixel(1)),
    Row(Pair, Pair(1, "a")),
    Row(Label, {"text": "a"}),
    Row(str | datetime, NOON),
    Row(str | datetime, "2026-01-31T12:00:00Z"),
    Row(str | UUID, KEY),
    Row(str | UUID, str(KEY)),
    Row(bytes | str, b"\xff"),
    Row(bytes | str, "a"),
    Row(datetime | date, date(2026, 1, 31)),
    Row(str | Path, Path("a")),
    Row(type(IPV4) | type(IPV6), IPV6),
    Row(Literal["now"] | datetime, NOON),
    Row(Size | str, Size.SMALL),
    Row(Point | Circle, Circle(1)),
    Row(Point | str, Point(1)),
    Row(dict[str, int] | Point, {"Point": 1}),
    Row(list[int] | tuple[str, ...], ("a",)),
    Row(Note, Note(NOON, [Note("later")])),
    Row(Stamp, {"at": NOON}),
]

#: Values of a parameter with the type hint Any, or without a type hint.
ANY_ROWS: list[Row] = [
    Row(Any, None),
    Row(Any, "a"),
    Row(Any, [1, 2.5, True]),
    Row(Any, (1, 2), [1, 2]),
    Row(Any, {1}, [1]),
    Row(Any, frozenset({1}), [1]),
    Row(Any, deque([1]), [1]),
    Row(Any, {"a": 1}),
    Row(Any, {1: "a"}, {"1": "a"}),
    Row(Any, b"\xff", "/w=="),
    Row(Any, NOON, "2026-01-31T12:00:00Z"),
    Row(Any, date(2026, 1, 31), "2026-01-31"),
    Row(Any, timedelta(hours=1), "PT3600S"),
    Row(Any, KEY, str(KEY)),
    Row(Any, Decimal("0.10"), "0.10"),
    Row(Any, Path("a/b"), "a/b"),
    Row(Any, IPV4, "192.0.2.1"),
    Row(Any, Size.SMALL, "s"),
    Row(Any, Corner.TOP_RIGHT, [1, 0]),
    Row(Any, Sku("a-1"), "a-1"),
    Row(Any, Point(1), {"x": 1, "y": 0}),
    Row(Any, Pair(1, "a"), [1, "a"]),
]

#: Type hints that are refused where a task is declared.
REFUSED: list[Any] = [
    Callable[[int], str],
    type[Point],
    Iterator[int],
    range,
    list[slice],
]
