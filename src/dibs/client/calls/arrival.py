"""Comparison of the values that a caller enqueues with the values that a worker decodes from the payload.

Values are compared with `==` where `==` sees every difference, and otherwise item by item and field by field.
Messages contain paths and types but no values, because a value may be secret.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, Final

import msgspec

from dibs.client.calls.hint_traits import (
    HintTraits,
    encoded_names,
    field_reader,
    is_pydantic_imported,
    model_origin,
)
from dibs.client.options.serde import Serde
from dibs.client.options.value_hooks import dec_hook, has_pydantic_schema
from dibs.errors import Refused

_BYTES: Final = (bytes, bytearray, memoryview)
_TEXTS: Final = (str, *_BYTES)
_CONTAINERS: Final = (Sequence, AbstractSet, ValuesView)
_SCALAR_TYPES: Final = frozenset({str, int, float, bool, type(None)})
#: The types of decoded JSON and MessagePack without type hints.
_PLAIN_TYPES: Final = _SCALAR_TYPES | {list, dict}
_ANY: Final = HintTraits(untyped=True, equality=True)
_MISSING: Final = object()
_WAYS_OUT: Final = "change the value or the type hint, or declare exact_arguments=False to send it anyway"


class Change(msgspec.Struct, frozen=True):
    """The first difference between a given value and the value that arrives."""

    #: Python expression after the name of the argument: `.lines[0].price`. Empty for the argument itself.
    path: str
    #: Continues "`path` would arrive ...".
    reason: str

    def below(self, step: str) -> Change:
        """Return the change with `step` before its path: the step from an object to the value in it."""
        return Change(step + self.path, self.reason)

    def refuse(self, argument: str, field: str, way_out: str = _WAYS_OUT) -> Refused:
        """Return the error of an enqueue whose `argument` would arrive changed."""
        return Refused(f"{argument}: {field}{self.path} would arrive {self.reason}; {way_out}", field=field)


def find_change(traits: HintTraits, given: Any, arrived: Any) -> Change | None:
    """Return the first difference between the given and the arrived value of a type hint, or None."""
    if traits.equality and type(given) is type(arrived) and _are_equal(given, arrived):
        return None
    return _Comparison(untyped=traits.untyped).compare(given, arrived)


def check_untyped_data(serde: Serde, data: Any, payload: bytes) -> None:
    """Raise Refused if data without a type hint is an object, or contains a model, that would lose fields."""
    if may_change_untyped(data) and (change := find_change(_ANY, data, serde.decode(payload))):
        raise change.refuse("data", "data", "send plain data, such as `model.model_dump()`")


def may_change_untyped(value: Any) -> bool:
    """Return whether a value can lose parts also without a type hint, so that it must be compared.

    Return True for an object, and for a list or dictionary that contains a value of pydantic. An encoder of
    msgspec searches these: a dictionary of 1,000 keys takes 15 us.
    """
    if type(value) not in _PLAIN_TYPES:
        return True
    if type(value) in _SCALAR_TYPES or not is_pydantic_imported():
        return False
    try:
        _search(value)
    except _FoundError:
        return True
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # A type that only the serde of the queue encodes.
    return False


class _FoundError(Exception):
    """Ends the search of `may_change_untyped`."""


def _stop_at_pydantic_value(value: Any) -> None:
    if has_pydantic_schema(type(value)):
        raise _FoundError


_search: Final = msgspec.json.Encoder(enc_hook=_stop_at_pydantic_value).encode


class _Comparison:
    """A walk through a given and an arrived value at the same time.

    With `untyped`, a part of the value may arrive in its JSON form, because the hint of that part may be Any.
    """

    def __init__(self, *, untyped: bool) -> None:
        self._untyped = untyped
        #: Pairs of objects whose fields were compared: private attributes may contain a cycle.
        self._entered: set[tuple[int, int]] = set()

    def compare(self, given: Any, arrived: Any) -> Change | None:
        """Return the first difference, or None."""
        if given is arrived or isinstance(given, Iterator):  # Encoding has consumed an iterator.
            return None
        kind: Any = type(given)
        if _is_same_class(given, arrived) and (reader := field_reader(kind)) is not None:
            return self._compare_fields(given, arrived, reader(given), reader(arrived))
        if isinstance(given, Mapping) and isinstance(arrived, Mapping):
            return self._compare_mappings(given, arrived)
        if _is_container(given) and _is_container(arrived):
            return self._compare_items(given, arrived)
        if _are_same_scalar(given, arrived):
            return None
        if _is_same_class(given, arrived):
            return Change("", f"with another value of type {_name(given)}")
        return self._compare_types(given, arrived)

    def _compare_fields(
        self, given: Any, arrived: Any, values: Mapping[str, Any], arrived_values: Mapping[str, Any]
    ) -> Change | None:
        if (pair := (id(given), id(arrived))) in self._entered:
            return None
        self._entered.add(pair)
        for name in {**values, **arrived_values}:
            value, arrived_value = values.get(name, _MISSING), arrived_values.get(name, _MISSING)
            if value is _MISSING or arrived_value is _MISSING:
                return Change(f".{name}", _presence(arrived_value))
            if change := self.compare(value, arrived_value):
                return change.below(f".{name}")
        return None

    def _compare_mappings(self, given: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> Change | None:
        """Compare the entries in their order, which encoding and decoding keep."""
        if len(given) != len(arrived):
            return _describe_lost_key(given, arrived) or _count_change(given, arrived)
        for (key, value), (arrived_key, arrived_value) in zip(given.items(), arrived.items(), strict=True):
            if change := self.compare(key, arrived_key):
                return Change("", f"with its key {key!r:.60} changed: {change.reason}")
            if change := self.compare(value, arrived_value):
                return change.below(f"[{key!r:.60}]")
        return None

    def _compare_items(self, given: Collection[Any], arrived: Collection[Any]) -> Change | None:
        """Compare the items. The hint chooses the container, so a tuple may arrive as a list."""
        if len(given) != len(arrived):
            return _count_change(given, arrived)
        if isinstance(arrived, AbstractSet):
            return self._compare_sets(given, arrived)
        for index, (item, arrived_item) in enumerate(zip(given, arrived, strict=True)):
            if change := self.compare(item, arrived_item):
                return change.below(f"[{index}]")
        return None

    def _compare_sets(self, given: Collection[Any], arrived: AbstractSet[Any]) -> Change | None:
        arrived_items = {item: item for item in arrived}
        for item in given:
            arrived_item = arrived_items.get(item, _MISSING)
            if arrived_item is _MISSING:
                return Change("", f"without an item of type {_name(item)}")
            if change := self.compare(item, arrived_item):
                return Change("", f"with an item changed: {change.path} {change.reason}")
        return None

    def _compare_types(self, given: Any, arrived: Any) -> Change | None:
        """Compare values of two classes. Either value may be the JSON form of the other."""
        if isinstance(given, str) and isinstance(arrived, _BYTES):  # decoded from base64
            return Change("", f"as {_name(arrived)} instead of {_name(given)}")
        if type(given) in _PLAIN_TYPES and type(arrived) not in _PLAIN_TYPES:
            return self._compare_converted(given, arrived)
        if self._untyped and type(arrived) in _PLAIN_TYPES:
            return self._compare_untyped(given, arrived)
        return Change("", f"as {_name(arrived)} instead of {_name(given)}")

    def _compare_converted(self, given: Any, arrived: Any) -> Change | None:
        """Compare plain data with the object that the hint makes of it. Other fields have defaults."""
        kind: Any = type(arrived)
        names = encoded_names(kind)
        if not isinstance(given, dict) or names is None:
            return None  # Text as a date or number as a Decimal; a model decides about its extra keys.
        fields = {key: name for name, key in names.items()}
        for key, value in given.items():
            if key not in fields:
                return Change(f"[{key!r:.60}]", f"nowhere: {_name(arrived)} has no such field")
            if change := self.compare(value, getattr(arrived, fields[key])):
                return change.below(f"[{key!r:.60}]")
        return None

    def _compare_untyped(self, given: Any, arrived: Any) -> Change | None:
        """Compare an object with the JSON type that represents it under the hint Any."""
        kind: Any = type(given)
        if has_pydantic_schema(kind):
            return self._compare_dump(given, arrived)
        if isinstance(given, datetime | time) and isinstance(arrived, str):
            base = datetime if isinstance(given, datetime) else time
            return self.compare(given, base.fromisoformat(arrived))
        names = encoded_names(kind)
        if names is None or not isinstance(arrived, dict):
            return None
        for name, key in names.items():
            if key in arrived:
                if change := self.compare(getattr(given, name), arrived[key]):
                    return change.below(f".{name}")
            elif not isinstance(given, msgspec.Struct):  # A Struct may leave out defaults.
                return Change(f".{name}", _presence(_MISSING))
        return None

    def _compare_dump(self, given: Any, arrived: Any) -> Change | None:
        """Compare a value that pydantic has encoded with the value that pydantic decodes from that."""
        try:
            again = dec_hook(type(given), arrived)
        except ValueError:
            return Change("", f"as data that {_name(given)} itself does not accept")
        return self.compare(given, again)


def _is_same_class(given: Any, arrived: Any) -> bool:
    return type(given) is type(arrived) or model_origin(type(given)) is model_origin(type(arrived))


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) and not isinstance(value, _TEXTS)


def _are_same_scalar(given: Any, arrived: Any) -> bool:
    """Return whether two values without items and fields are equal, of one class or like 1 and 1.0."""
    if isinstance(given, datetime) and isinstance(arrived, datetime):
        return _are_same_datetime(given, arrived)
    if isinstance(given, time) and isinstance(arrived, time):
        # A time of day in a zone with summer time has no offset, so it arrives without a zone, and "equal".
        return given == arrived and (given.tzinfo is None) == (arrived.tzinfo is None)
    if _is_bool_for_number(given, arrived) or _is_bool_for_number(arrived, given):
        return False
    return _are_equal(given, arrived) or (_is_nan(given) and _is_nan(arrived))


def _are_same_datetime(given: datetime, arrived: datetime) -> bool:
    """Return whether two datetimes are one instant. The time zone becomes an offset, or UTC in MessagePack.

    Python's `==` is False for a time that a change of the clocks repeats, if the time zones differ.
    """
    if given.tzinfo is None or arrived.tzinfo is None:
        return given == arrived
    return given.astimezone(UTC) == arrived.astimezone(UTC)


def _is_bool_for_number(one: Any, other: Any) -> bool:
    return type(one) is bool and type(other) in {int, float}


def _is_nan(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float) and value != value  # noqa: PLR0124 - only NaN differs from itself


def _are_equal(given: Any, arrived: Any) -> bool:
    """Return whether `==` is true. It counts as false if it raises, as it does for arrays of numpy."""
    try:
        return bool(given == arrived)
    except Exception:  # noqa: BLE001 - `==` of a class of the program may raise any error
        return False


def _describe_lost_key(given: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> Change | None:
    """Return the change for the first key that does not arrive, as text or as it is."""
    for key in given:
        if key not in arrived and str(key) not in arrived:
            return Change(f"[{key!r:.60}]", _presence(_MISSING))
    return None


def _count_change(given: Collection[Any], arrived: Collection[Any]) -> Change:
    return Change("", f"with {len(arrived)} instead of {len(given)} items")


def _presence(arrived: Any) -> str:
    return (
        "nowhere: the payload does not contain it"
        if arrived is _MISSING
        else "with a value that was not given"
    )


def _name(value: Any) -> str:
    return type(value).__qualname__
