"""Hints that contain names of other hints, tuples with names and types of pydantic: their values arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, date, datetime
from enum import Enum
from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from typing_extensions import TypeAliasType

from dibs import BadHandler, Dibs, JsonSerde, MessagePackSerde, Refused, Serde
from dibs.client.calls.signature import CallSignature
from tests.client.calls.type_runs import by_position, make_function

SERDES = pytest.mark.parametrize("serde", [JsonSerde(), MessagePackSerde()], ids=lambda one: one.name)
DAY, NOON = date(2026, 1, 31), datetime(2026, 1, 31, 12, tzinfo=UTC)
One = TypeVar("One")
Other = TypeVar("Other")

When = TypeAliasType("When", datetime | str)
Twice = TypeAliasType("Twice", tuple[One, One], type_params=(One,))
Swapped = TypeAliasType("Swapped", tuple[Other, One], type_params=(One, Other))
Tree = TypeAliasType("Tree", "list[Tree] | dict[str, Tree] | str | int | None")


class Visit(NamedTuple):
    name: str
    at: str | datetime = "unknown"
    guests: tuple[str | UUID, ...] = ()


class Bounded(TypedDict):
    count: Annotated[int, pydantic.Field(ge=3)]


class Patch(msgspec.Struct):
    name: str | msgspec.UnsetType = msgspec.UNSET


class Callback(Enum):
    NONE = object()


def signature(hint: Any) -> CallSignature:
    return CallSignature(make_function(by_position, hint))


def send(hint: Any, value: Any, serde: Serde) -> Any:
    call = signature(hint)
    (arrived,), _ = call.decode_arguments(serde, call.encode_arguments(serde, (value,), {}))
    return arrived


@SERDES
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (When | None, NOON),
        (When | None, "noon"),
        (When | None, None),
        (dict[str, When | int], {"a": NOON, "b": "noon", "c": 1}),
        (Twice[When], (NOON, "noon")),
        (Swapped[int, When], (NOON, 1)),
        (Tree, {"a": [1, None, {"b": "c"}]}),
        (Tree | None, ["a", [1]]),
        (list[Tree], [1, "a", [None]]),
        (Visit, Visit("Ada", NOON, (UUID(int=7), "Bob"))),
        (Visit, Visit("Ada")),
        (list[Visit], [Visit("Ada", "noon")]),
        (deque[str | date], deque(["a", DAY])),
        (Iterable[str | date], ["a", DAY]),
        (list[deque[str | date]], [deque(["a", DAY])]),
        (Bounded, {"count": 3}),
        (Patch, Patch()),
        (Patch, Patch("Ada")),
        (pydantic.AwareDatetime, NOON),
        (pydantic.AwareDatetime | str, NOON),
        (pydantic.AwareDatetime | None, None),
        (pydantic.PastDate, DAY),
        (Annotated[int, pydantic.AfterValidator(abs)], 3),
        (pydantic.PastDate | str, "a"),
        (pydantic.IPvAnyAddress, ip_address("192.0.2.1")),
    ],
    ids=str,
)
def test_a_value_of_a_nested_hint_arrives(hint: Any, value: Any, serde: Serde) -> None:
    arrived = send(hint, value, serde)

    assert (type(value), value) == (type(arrived), arrived)


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (Bounded, {"count": 2}, "greater than or equal to 3"),
        (pydantic.AwareDatetime, NOON.replace(tzinfo=None), "timezone info"),
        (Visit, ("Ada", NOON, (), 1), "length 1 to 3"),
    ],
)
def test_a_value_outside_of_a_nested_hint_is_refused(hint: Any, value: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        send(hint, value, JsonSerde())

    assert refused.value.field == "value"


def test_an_alias_of_an_unknown_name_is_refused_where_the_task_is_declared() -> None:
    with pytest.raises(BadHandler, match="'value' cannot be sent"):
        Dibs("memory:").task(make_function(by_position, TypeAliasType("Lost", "list[Nowhere]")))  # noqa: F821 - the case of this test


@SERDES
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Callback, Callback.NONE),
        (Any, object()),
        (list[int], (one for one in [1])),
        (dict[str, Any], {"a": {1j: 2}}),
        (pydantic.SecretBytes, pydantic.SecretBytes(b"\xff")),
    ],
    ids=["Enum", "Any", "generator", "key", "bytes"],
)
def test_a_value_that_cannot_be_encoded_is_refused_by_the_name_of_the_parameter(
    hint: Any, value: Any, serde: Serde
) -> None:
    with pytest.raises((Refused, BadHandler), match="value") as refused:
        send(hint, value, serde)

    assert getattr(refused.value, "field", "value") == "value"


@pydantic.dataclasses.dataclass
class Bill:
    number: int = pydantic.Field(default=0, alias="no")


@pytest.mark.parametrize("stored", ['{"number": 3}', '{"no": 3}'], ids=["name", "alias"])
def test_a_dataclass_of_pydantic_may_be_stored_by_name_and_by_alias(stored: str) -> None:
    """Earlier versions of dibs stored such a dataclass by the names of its fields."""
    payload = f'{{"args": [{stored}], "kwargs": {{}}}}'.encode()

    assert signature(Bill).decode_arguments(JsonSerde(), payload) == ((Bill(no=3),), {})
