"""Functions for the tests to declare: a handler must be at the top of a module."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import attrs
import pydantic

from dibs import CurrentJob, Failure, PermanentError


class Size(Enum):
    SMALL = "s"


@dataclass
class Crop:
    left: int
    top: int = 0


@attrs.frozen
class Frame:
    size: Size
    crop: Crop | None = None


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, populate_by_name=True)

    number: int = pydantic.Field(gt=0, alias="no")
    placed: datetime
    price: Decimal
    lines: list[Line] = []


class Line(pydantic.BaseModel):
    article: UUID
    kind: Size = Size.SMALL


class Lost(Exception):
    """An exception class of an application."""


def thumbnail(path: str, width: int = 200) -> str:
    return f"{path}@{width}"


async def refresh(count: int = 1) -> list[int]:
    return list(range(count))


def typed(  # noqa: PLR0917 - one of each
    when: datetime,
    key: UUID,
    price: Decimal,
    size: Size,
    form: Literal["png", "jpg"],
    crop: Crop,
    place: Path,
    *rest: Crop,
    **named: Size,
) -> Crop:
    return crop


def only(value: int, /, *, flag: bool = False) -> None: ...


def keyed(names: dict[int, Crop]) -> None: ...


def modelled(order: Order, others: dict[str, Order] | None = None, frame: Frame | None = None) -> Order:
    return order


def counted(*numbers: int, **named: float) -> None: ...


def take_object(data: object) -> None: ...


def two_models(either: Order | Line) -> None: ...


def send(data: Crop, job: CurrentJob) -> None: ...


def take(data: Any) -> None: ...


def take_nothing() -> None: ...


def take_three(one: int, two: int, three: int) -> None: ...


def alert(failure: Failure) -> None: ...


def alert_with(failure: Failure, job: CurrentJob) -> None: ...


def with_connection(number: int, connection: range = range(1)) -> None: ...


def with_self(self: int) -> None: ...


def with_self_by_name(*, self: int = 1) -> None: ...


def unresolved(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def generate() -> Any:
    yield 1


async def generate_later() -> Any:
    yield 1


class Service:
    def method(self) -> None: ...

    def __call__(self) -> None: ...


async def end_as(data: str) -> None:
    """End in the way that the data names."""
    if data == "timeout":
        await asyncio.Event().wait()
    raise PermanentError(data) if data == "permanent" else ValueError(data)


#: The failures that `note_failure` was called with.
FAILURES: list[Failure] = []


def note_failure(failure: Failure) -> None:
    FAILURES.append(failure)
