"""For random values of random type hints: a worker gets an equal value, or the enqueue is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from types import GenericAlias
from typing import Any
from uuid import UUID

import pydantic
from attrs import evolve
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dibs import Refused
from dibs.client.calls.arrival import find_change
from dibs.client.calls.hint_traits import read_traits
from dibs.client.options.serde import JsonSerde, MessagePackSerde
from tests.client.calls.arrival_types import (
    Admin,
    Aliased,
    Box,
    Camel,
    Event,
    Hidden,
    Movie,
    Open,
    Pair,
    Point,
    Point3,
    Size,
    User,
)
from tests.client.calls.test_arrival import send

#: A type hint and a value.
Case = tuple[Any, Any]

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(timezones=st.none() | st.just(UTC) | OFFSETS).filter(lambda at: 1 < at.year < 9999)
POINTS = st.builds(Point, INTEGERS, INTEGERS)
SECRETS = TEXTS.map(pydantic.SecretStr)

#: Strategies of values that arrive, by their hints.
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    str: TEXTS,
    bool: st.booleans(),
    float: FLOATS,
    bytes: st.binary(max_size=5),
    date: st.dates(date(2, 1, 1), date(9998, 12, 31)),
    time: st.times(),
    datetime: TIMES,
    timedelta: st.timedeltas(timedelta(days=-99_999), timedelta(days=99_999)),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Size: st.sampled_from(Size),
    IPv4Address: st.ip_addresses(v=4),
}
CLASSES: dict[Any, st.SearchStrategy[Any]] = {
    Point: POINTS,
    Point3: st.builds(Point3, INTEGERS, INTEGERS, INTEGERS),
    Event: st.builds(Event, TEXTS, TIMES, st.lists(TEXTS, max_size=2), POINTS),
    Hidden: st.builds(Hidden, INTEGERS, INTEGERS),
    Camel: st.builds(Camel, TEXTS, TEXTS),
    Pair: st.builds(Pair, INTEGERS, FLOATS),
    Movie: st.fixed_dictionaries({}, optional={"title": TEXTS, "year": INTEGERS}),
    User: st.builds(User, name=TEXTS, password=SECRETS),
    Aliased: st.builds(lambda number: Aliased.model_validate({"no": number}), INTEGERS),
    Box[int]: INTEGERS.map(lambda item: Box[int](item=item)),
    Open: st.builds(Open, number=INTEGERS, more=TEXTS),
}
EXACT = {**SCALARS, **CLASSES}
#: Values that fit a hint, and arrive changed, but for lucky ones.
LOSSY: dict[Any, st.SearchStrategy[Any]] = {
    Point: st.builds(Point3, INTEGERS, INTEGERS),
    User: st.builds(User, token=TEXTS) | st.builds(Admin, rights=st.lists(TEXTS, max_size=1)),
    Movie: st.dictionaries(st.sampled_from(["title", "director"]), TEXTS),
    float: INTEGERS,
    str: st.dates() | st.uuids() | st.sampled_from(Size),
    datetime: TIMES.map(lambda at: at.replace(tzinfo=timezone(timedelta(seconds=3601)))),
    dict[str, int]: st.dictionaries(st.sampled_from(["1", 1, "2", 2]), INTEGERS),
    Any: st.builds(User, name=TEXTS, token=TEXTS) | st.dictionaries(TEXTS, st.builds(User, token=TEXTS)),
}


def pairs(strategies: dict[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[Case]:
    return st.sampled_from(list(strategies)).flatmap(lambda hint: st.tuples(st.just(hint), strategies[hint]))


def inside_containers(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    return st.recursive(cases, contain, max_leaves=3)


def contain(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Return cases of containers with one value."""
    return st.one_of(
        cases.map(lambda case: (GenericAlias(list, case[0]), [case[1]] * 2)),
        cases.map(lambda case: (GenericAlias(tuple, (case[0], int)), (case[1], 5))),
        cases.map(lambda case: (GenericAlias(dict, (str, case[0])), {"a": case[1]})),
        cases.map(lambda case: (case[0] | None, case[1])),
    )


SERDES = st.sampled_from([JsonSerde(), MessagePackSerde()])


@given(inside_containers(pairs(EXACT)), SERDES)
@settings(max_examples=200)
def test_a_value_of_a_supported_hint_arrives(case: Case, serde: Any) -> None:
    hint, value = case

    assert send(hint, value, serde) == value


@given(inside_containers(pairs(LOSSY)), SERDES)
@settings(max_examples=200)
def test_a_value_that_does_not_fit_exactly_arrives_or_is_refused(case: Case, serde: Any) -> None:
    hint, value = case
    try:
        arrived = send(hint, value, serde)
    except Refused as refused:
        event(f"refused: {refused.field}")
        return

    assert plain(arrived) == plain(value)


@given(inside_containers(pairs(EXACT) | pairs(LOSSY)), SERDES)
@settings(max_examples=200)
def test_one_comparison_with_equality_finds_what_the_walk_finds(case: Case, serde: Any) -> None:
    hint, value = case
    try:
        arrived = send(hint, value, serde, exact=False)
    except Refused:
        return
    traits = read_traits(hint)

    found = find_change(traits, value, arrived)

    assert found == find_change(evolve(traits, equality=False), value, arrived)


def plain(value: Any) -> Any:
    """Return models without their class, because under the hint Any they arrive as dictionaries."""
    if isinstance(value, User):
        return {"name": value.name, "password": value.password.get_secret_value()} | (
            {"token": value.token} if value.token else {}
        )
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    return value
