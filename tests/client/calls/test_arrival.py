"""Arguments that would arrive changed are refused, on each serde; all others arrive as they were given."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pydantic
import pytest
from typing_extensions import TypedDict

from dibs import BatchRefused, Dibs, Refused
from dibs.client.calls.signature import CallSignature
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde
from tests.client.calls.arrival_types import (
    Admin,
    Aliased,
    Box,
    Camel,
    Color,
    Event,
    Extra,
    Hidden,
    Late,
    Lowered,
    Movie,
    Numbers,
    Open,
    Own,
    Pair,
    Point,
    Point3,
    Private,
    Ringed,
    Size,
    Step,
    Text,
    Unequal,
    User,
)

JSON = JsonSerde()
SERDES = pytest.mark.parametrize("serde", [JSON, MessagePackSerde()], ids=lambda one: one.name)
BERLIN = ZoneInfo("Europe/Berlin")


def signature(hint: Any, *, exact: bool = True) -> CallSignature:
    def take(value: Any) -> None: ...

    take.__annotations__ = {"value": hint}
    return CallSignature(take, exact=exact)


def send(hint: Any, value: Any, serde: Serde = JSON, *, exact: bool = True) -> Any:
    """Return what a worker gets for a value of the hint. Raises Refused."""
    call = signature(hint, exact=exact)
    (arrived,), _ = call.decode_arguments(serde, call.encode_arguments(serde, (value,), {}))
    return arrived


def noted(note: str) -> Private:
    model = Private(number=1)
    model._note = note
    return model


def late(total: int) -> Late:
    value = Late()
    value.total = total
    return value


CHANGED: dict[str, tuple[Any, Any, str]] = {
    "an excluded field": (User, User(token="t"), "value.token"),
    "an excluded field in a list": (list[User], [User(), User(token="t")], "value[1].token"),
    "an excluded field in a union": (User | None, User(token="t"), "value.token"),
    "a subclass of a model": (User, Admin(rights=["all"]), "User instead of Admin"),
    "a subclass of a dataclass": (Point, Point3(1, 2, 3), "Point instead of Point3"),
    "a subclass in a dictionary": (dict[str, Point], {"a": Point3(1)}, "value['a']"),
    "a private attribute": (Private, noted("mine"), "value._note"),
    "a model that changes its data": (Lowered, Lowered(count=5), "value.count"),
    "a field that == ignores": (Step, Step(1), "value.seen"),
    "a class with its own ==": (Own, Own(), "value.number"),
    "an unknown key of a TypedDict": (Movie, {"title": "Metropolis", "stars": 5}, "value['stars']"),
    "an unknown key for a dataclass": (Point, {"x": 1, "z": 3}, "value['z']"),
    "keys that become equal": (dict[str, str], {1: "a", "1": "b"}, "1 instead of 2 items"),
    "a number as key of text": (dict[str, str], {1: "a"}, "key 1"),
    "an integer that no float can be": (float, 10**17 + 1, "float instead of int"),
    "a date as text": (str, date(2026, 1, 1), "str instead of date"),
    "a path as text": (str, Path("a"), "str instead of"),
    "an Enum as text": (str, Size.SMALL, "str instead of Size"),
    "a list as a set": (set[int], [1, 1], "1 instead of 2 items"),
    "a time of day with summer time": (time, time(12, tzinfo=BERLIN), "another value of type time"),
    "a dataclass as a dictionary": (dict[str, int], Point(1), "dict instead of Point"),
    "a model with a field that Any loses": (Any, User(token="t"), "value.token"),
    "a model below Any": (dict[str, Any], {"user": User(token="t")}, "value['user'].token"),
    "a model in a list below Any": (Any, {"users": [User(token="t")]}, "value['users'][0].token"),
    "keys that become equal below Any": (dict, {1: "a", "1": "b"}, "1 instead of 2 items"),
}


@pytest.mark.parametrize(("hint", "value", "path"), CHANGED.values(), ids=CHANGED)
def test_a_value_that_would_arrive_changed_is_refused_with_the_path(hint: Any, value: Any, path: str) -> None:
    with pytest.raises(Refused) as refused:
        send(hint, value)

    assert refused.value.field == "value"
    assert path in str(refused.value)


KEPT: dict[str, tuple[Any, Any]] = {
    "a secret": (User, User(password=pydantic.SecretStr("s3cret"))),
    "two aliases": (Aliased, Aliased.model_validate({"no": 5})),
    "extra fields": (Open, Open.model_validate({"number": 1, "more": [1, "a"]})),
    "a lock in a private attribute": (Private, Private(number=1)),
    "a private cycle": (Ringed, Ringed(number=1)),
    "a generic model": (Box[int], Box[int](item=1)),
    "a generic model without its type": (Box[int], Box(item=1)),
    "a generic model with its type, for one without": (Box, Box[int](item=1)),
    "a model of a list": (Numbers, Numbers([1, 2])),
    "a private name of attrs": (Hidden, Hidden(5, 6)),
    "a field that __init__ does not take": (Late, late(7)),
    "a renamed Struct": (Camel, Camel(first_name="Ada")),
    "a dataclass without ==": (Unequal, Unequal(5)),
    "a dataclass with data of any type": (Extra, Extra({"a": [1, None, {}]}, Point(1))),
    "nested dataclasses": (list[Event], [Event("a", datetime(2026, 1, 1, tzinfo=UTC), ["x"], Point(1))]),
    "a named tuple": (Pair, Pair(1, 2.5)),
    "a named tuple as a tuple": (tuple[int, float], Pair(1, 2)),
    "a tuple as a list": (list[int], (1, 2)),
    "a tuple of any length": (Sequence[int], (1, 2)),
    "a set as a tuple": (tuple[int, ...], {1, 2}),
    "an OrderedDict": (Mapping[str, int], OrderedDict(b=1, a=2)),
    "a defaultdict": (dict[str, int], defaultdict(int, a=1)),
    "an int as a float": (float, 1),
    "an int as a Decimal": (Decimal, 1),
    "a subclass of str": (str, Text("a")),
    "a StrEnum as text": (str, Color.RED),
    "text as an Enum": (Size, "s"),
    "text as a date": (date, "2026-01-01"),
    "a dictionary as a dataclass": (Point, {"x": 1}),
    "a dictionary as a Struct": (Camel, {"firstName": "Ada"}),
    "a dictionary as a model": (User, {"name": "eve", "ignored": 1}),
    "a bytearray": (bytes, bytearray(b"a")),
    "a flavour of a path": (Path, PurePosixPath("a/b")),
    "a repeated hour": (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)),
    "an exact Decimal": (Decimal, Decimal("1.10000000000000000000000001")),
    "a long timedelta": (timedelta, timedelta(days=99_999, microseconds=1)),
    "a negative zero": (float, -0.0),
    "numbers as keys": (dict[int, str], {1: "a"}),
    "UUIDs as keys": (dict[UUID, int], {UUID(int=1): 1}),
    "frozen sets": (frozenset[date], frozenset({date(2026, 1, 1)})),
    "a literal": (Literal["a", 1], "a"),
    "a date below Any": (dict[str, Any], {"at": date(2026, 1, 1), "tags": {"x"}, "point": Point(1)}),
    "numbers as keys below Any": (dict, {1: {2: "a"}}),
    "a model below Any that loses nothing": (Any, [User(name="eve")]),
}


@SERDES
@pytest.mark.parametrize(("hint", "value"), KEPT.values(), ids=KEPT)
def test_a_value_that_arrives_as_it_is_is_sent(hint: Any, value: Any, serde: Serde) -> None:
    assert send(hint, value, serde) is not None


def test_no_secret_is_in_the_message() -> None:
    with pytest.raises(Refused) as refused:
        send(User, User(name="ada", token="hunter2"))

    assert "hunter2" not in str(refused.value)
    assert "exact_arguments=False" in str(refused.value)


@pytest.mark.parametrize(("hint", "value"), [case[:2] for case in CHANGED.values()], ids=CHANGED)
def test_a_task_may_send_arguments_that_change(hint: Any, value: Any) -> None:
    assert send(hint, value, exact=False) != value or hint in {Step, Own, time}


def test_a_number_below_its_bound_is_refused() -> None:
    with pytest.raises(Refused, match="greater than or equal to 3"):
        send(Annotated[int, pydantic.Field(ge=3)], 2)


def test_messagepack_sends_the_instant_of_an_offset_with_seconds() -> None:
    """JSON has no seconds in offsets, so it refuses the datetime."""
    before_1900 = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))

    with pytest.raises(Refused, match="value would arrive with another value of type datetime"):
        send(datetime, before_1900)
    assert send(datetime, before_1900, MessagePackSerde()) == before_1900


CUT = User(token="t")


def register(user: User) -> None: ...


def enroll(data: User) -> None: ...


async def test_a_task_refuses_and_sends_what_it_declares() -> None:
    async with Dibs("memory:") as app:
        exact = app.task(queue="exact")(register)
        loose = app.task(queue="loose", exact_arguments=False)(register)

        for refuse in (
            exact.enqueue(CUT),
            exact.options(id="a").enqueue(CUT),
            exact.enqueue_and_wait(CUT),
        ):
            with pytest.raises(Refused, match=r"user\.token"):
                await refuse
        with pytest.raises(BatchRefused) as refused:
            await exact.enqueue_many([exact.bind(User()), exact.bind(CUT)])
        await loose.options(id="a").enqueue(CUT)

        assert [getattr(one, "field", "") for one in refused.value.exceptions] == ["user"]
        assert (await exact.queue.counts()).waiting == 0
        assert await loose.queue.get("a")


async def test_a_queue_refuses_and_sends_what_its_handler_declares() -> None:
    async with Dibs("memory:") as app:
        app.queue("exact").handler(enroll)
        app.queue("loose").handler(exact_arguments=False)(enroll)

        with pytest.raises(Refused, match=r"data\.token") as refused:
            await app.queue("exact").enqueue(CUT)
        await app.queue("loose").enqueue(CUT)

        assert refused.value.field == "data"


async def test_a_queue_without_a_handler_refuses_a_model_that_loses_fields() -> None:
    async with Dibs("memory:") as app:
        queue = app.queue("elsewhere")

        with pytest.raises(Refused, match=r"data\[0\]\.token"):
            await queue.enqueue([CUT])
        await queue.enqueue([User(), {1: {2}}, date(2026, 1, 1)])

        assert (await queue.counts()).waiting == 1


def several(first: Point, /, *points: Point, key: Point | None = None, **others: Point) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((Point3(1),), {}, "first"),
        ((Point(1), Point(2), Point3(3)), {}, "points"),
        ((Point(1),), {"key": Point3(1)}, "key"),
        ((Point(1),), {"other": Point3(1)}, "others"),
    ],
)
def test_the_error_names_the_parameter(args: Any, kwargs: Any, field: str) -> None:
    call = CallSignature(several)

    with pytest.raises(Refused, match=f"argument '{field}' of several") as refused:
        call.encode_arguments(JSON, args, kwargs)

    assert refused.value.field == field


def test_arguments_by_name_arrive() -> None:
    call = CallSignature(several)
    args, kwargs = (Point(1), Point(2)), {"key": Point(3), "other": Point(4)}

    assert (args, kwargs) == call.decode_arguments(JSON, call.encode_arguments(JSON, args, kwargs))


@pytest.mark.parametrize(("given", "hint"), [(Counter(a=1), Counter[str]), (deque([1]), deque[int])])
def test_containers_of_collections_arrive(given: Any, hint: Any) -> None:
    assert given == send(hint, given)


def test_an_iterable_may_be_a_range() -> None:
    assert [0, 1] == send(Iterable[int], range(2))


@dataclasses.dataclass
class Login:
    password: pydantic.SecretStr
    aliased: Aliased
    others: set[pydantic.SecretStr]


class Audit(pydantic.BaseModel):
    login: Login
    tokens: frozenset[pydantic.SecretStr]
    headers: Headers


class Headers(TypedDict):
    token: pydantic.SecretStr


Audit.model_rebuild()


@SERDES
def test_secrets_in_other_classes_inside_a_model_arrive(serde: Serde) -> None:
    one, other = pydantic.SecretStr("trout"), pydantic.SecretStr("pike")
    login = Login(one, Aliased(number=3), {one, other})
    audit = Audit(login=login, tokens=frozenset({one, other}), headers={"token": other})

    assert send(Audit, audit, serde) == audit


def test_a_model_with_invalid_values_is_refused_without_a_warning_that_shows_them(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with pytest.raises(Refused):
        send(Audit, Audit.model_construct(login="trout", tokens=frozenset(), headers={"token": "trout"}))

    assert [] == list(recwarn)


@attrs.define
class Sealed:
    _seal: int


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (bytes, "abcd"),
        (bytes | int, "abcd"),
        (list[bytes], ["abcd"]),
        (Any, Sealed(3)),
        (Any, datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=3601)))),
    ],
)
def test_a_value_that_json_would_change_silently_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(Refused, match=r"value.* would arrive"):
        send(hint, value)


class Stamp(datetime):
    """A datetime of another library, as of pandas or freezegun."""


class Day(date):
    pass


class Money(Decimal):
    pass


@SERDES
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (datetime, Stamp(2026, 1, 31, tzinfo=UTC)),
        (datetime | None, Stamp(2026, 1, 31)),
        (str | datetime, Stamp(2026, 1, 31)),
        (date, Day(2026, 1, 31)),
        (Decimal, Money("1.50")),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("sNaN")),
    ],
)
def test_subclasses_of_standard_types_arrive_as_these_types(hint: Any, value: Any, serde: Serde) -> None:
    base = type(value).__mro__[1] if type(value) in (Stamp, Day, Money) else Decimal

    arrived = send(hint, value, serde)

    assert (base, str(value)) == (type(arrived), str(arrived))
