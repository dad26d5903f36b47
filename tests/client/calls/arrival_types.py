"""Classes for test_arrival.py, most with values that a payload does not keep."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import pydantic

T = TypeVar("T")


class Color(StrEnum):
    RED = "red"


class Size(Enum):
    SMALL = "s"


class User(pydantic.BaseModel):
    name: str = "ada"
    password: pydantic.SecretStr = pydantic.SecretStr("")
    token: str = pydantic.Field(default="", exclude=True)


class Admin(User):
    rights: list[str] = []


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(default=0, validation_alias="no", serialization_alias="num")


class Open(pydantic.BaseModel, extra="allow"):
    number: int = 0


class Private(pydantic.BaseModel):
    number: int = 0
    _note: str = pydantic.PrivateAttr("")
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)

    @pydantic.computed_field
    def double(self) -> int:
        return 2 * self.number

    @functools.cached_property
    def cached(self) -> object:
        return object()


class Ringed(pydantic.BaseModel):
    number: int = 0
    _ring: list[Any] = pydantic.PrivateAttr(default_factory=list)

    def model_post_init(self, context: object) -> None:
        self._ring.append(self)


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Numbers(pydantic.RootModel[list[int]]): ...


class Lowered(pydantic.BaseModel):
    """A model that lowers its number at each validation, so its own data gives another model."""

    count: int

    @pydantic.field_validator("count")
    @classmethod
    def lower(cls, value: int) -> int:
        return value - 1


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Point3(Point):
    z: int = 0


@dataclass
class Step:
    """Its constructor changes a field, so decoding changes it a second time; `==` ignores that field."""

    number: int
    seen: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        self.seen += 1


@dataclass(eq=False)
class Unequal:
    number: int


@dataclass
class Extra:
    data: dict[str, Any]
    point: Point | None = None


@dataclass
class Own:
    """A class whose `==` is true for any two objects, and whose constructor changes the number."""

    number: int = 0

    def __post_init__(self) -> None:
        self.number += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    __hash__ = None  # type: ignore[assignment]


@attrs.define
class Hidden:
    _code: int = 0
    shown: int = 0


@attrs.define
class Late:
    number: int = 0
    total: int = attrs.field(default=1, init=False)


class Camel(msgspec.Struct, rename="camel", omit_defaults=True):
    first_name: str = ""
    last_name: str = ""


class Movie(TypedDict, total=False):
    title: str
    year: int


class Pair(NamedTuple):
    left: int
    right: float = 0


class Text(str):
    __slots__ = ()


@dataclass
class Event:
    name: str
    at: datetime
    tags: list[str]
    point: Point
    size: Size = Size.SMALL
