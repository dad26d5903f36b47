"""Conversion of values whose type hint msgspec alone does not encode and decode exactly.

`build_converter` puts a converter together from the converters of the parts of the hint. Most hints need
none. Of a union whose types have the same form in JSON, such as `str | datetime`, a value is sent as an
object with one key, the name of its type: `{"datetime": "2026-01-31T12:00:00Z"}`. Text, numbers, true,
false and null are sent as they are.
"""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter, OrderedDict, deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol, get_args, get_origin

import attrs
import msgspec
from attrs import frozen

from dibs.client.calls import hint_support
from dibs.client.calls.hint_support import alias_target, describe, has_fields, union_members
from dibs.client.options.value_hooks import dec_hook, value_class


class UnsupportedHintError(TypeError):
    """Raised for a type hint without a converter. The message names the type and the reason."""

    def __init__(self, hint: Any, reason: str) -> None:
        super().__init__(f"{describe(hint)}: {reason}")


class Converter(Protocol):
    """Encodes and decodes the values of one type hint, together with a serde."""

    def dump(self, value: Any, /) -> Any:
        """Return a value of the hint as data that a serde encodes; other values unchanged."""

    def load(self, plain: Any, /) -> Any:
        """Return the data that a serde has decoded as a value of the hint. Raises ValueError, TypeError."""


@frozen
class FunctionConverter:
    """A converter of two functions."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def convert(plain: Any, hint: Any) -> Any:
    """Return decoded data as a hint that msgspec knows. Raises ValueError."""
    return msgspec.convert(plain, hint, dec_hook=dec_hook, str_keys=True)


def unchanged(value: Any) -> Any:
    """Return `value` itself, as `dump` or `load` of a hint whose values need no conversion."""
    return value


_JSON_SCALARS: Final = (type(None), bool, int, float, str)
_CONTAINERS: Final = (list, tuple, set, frozenset, dict, deque, Sequence, AbstractSet, Mapping)


@frozen
class Member:
    """A member of a union that is no JSON scalar."""

    name: str
    #: The class of its values.
    kind: type
    converter: Converter


def build_union(hint: Any, build_part: Callable[[Any], Converter]) -> Converter:
    """Return the converter of a union. Raises UnsupportedHintError if two members have the same class."""
    parts = union_members(hint)
    scalars = [part for part in parts if _is_scalar(part)]
    members = [_build_member(hint, part, build_part) for part in parts if not _is_scalar(part)]
    if len({one.name for one in members}) < len(members) or len({one.kind for one in members}) < len(members):
        raise UnsupportedHintError(hint, "two types of this union have the same class or name")
    union = _Union(hint, members, typing.Union[tuple(scalars)] if scalars else None)  # noqa: UP007 - made at run time
    if len(members) == 1 and _is_structured(members[0].kind):
        return FunctionConverter(union.dump_untagged, union.load_untagged)
    return FunctionConverter(union.dump, union.load)


@frozen
class _Union:
    hint: Any
    members: Sequence[Member]
    #: The union of the JSON scalars among the members; None without any.
    scalars: Any

    def dump_untagged(self, value: Any) -> Any:
        member = self.members[0]
        return member.converter.dump(value) if isinstance(value, member.kind) else value

    def load_untagged(self, plain: Any) -> Any:
        if isinstance(plain, dict | list) or self.scalars is None:
            return self.members[0].converter.load(plain)
        return convert(plain, self.scalars)

    def dump(self, value: Any) -> Any:
        member = self._member_of(value)
        return value if member is None else {member.name: member.converter.dump(value)}

    def _member_of(self, value: Any) -> Member | None:
        kind = type(value)
        for member in self.members:
            if member.kind is kind:
                return member
        if isinstance(value, str):  # or a subclass, which is a Sequence as well
            return None
        return next((one for one in self.members if isinstance(value, one.kind)), None)

    def load(self, plain: Any) -> Any:
        if isinstance(plain, dict) and len(plain) == 1:
            (name,) = plain
            for member in self.members:
                if member.name == name:
                    return member.converter.load(plain[name])
        return self._load_untagged_by_another_program(plain)

    def _load_untagged_by_another_program(self, plain: Any) -> Any:
        """Return data without the name of a type: a scalar as it is, or the first member that takes it."""
        if self.scalars is not None:
            try:
                return convert(plain, self.scalars)
            except ValueError:
                pass
        for member in self.members:
            try:
                return member.converter.load(plain)
            except (ValueError, TypeError):
                continue
        raise ValueError(f"Expected `{describe(self.hint)}`, which this value is not")


def _is_scalar(hint: Any) -> bool:
    return hint in _JSON_SCALARS or get_origin(hint) is typing.Literal


def _build_member(union: Any, hint: Any, build_part: Callable[[Any], Converter]) -> Member:
    named = hint
    while (target := alias_target(named)) is not None or get_origin(named) is typing.Annotated:
        named = get_args(named)[0] if target is None else target
    named = get_origin(named) or named
    if not isinstance(named, type) or named is Any:
        raise UnsupportedHintError(union, f"{describe(hint)} has no class to tell it from the other types")
    kind = dict if typing.is_typeddict(named) else value_class(named)
    return Member(named.__name__, kind, build_part(hint))


def _is_structured(kind: Any) -> bool:
    """Return whether the values of a class are objects or arrays in JSON."""
    if "root" in getattr(kind, "__pydantic_fields__", {}):
        return False
    return kind in _CONTAINERS or has_fields(kind) or hasattr(kind, "__pydantic_fields__")


#: Containers by their origin, with the function that makes one from a list.
_LISTS: Final[dict[Any, Callable[[Iterable[Any]], Any]]] = {
    **dict.fromkeys((list, Iterable, Collection, Sequence, MutableSequence), list),
    **dict.fromkeys((set, AbstractSet, MutableSet), set),
    frozenset: frozenset,
    deque: deque,
}
_DICTS: Final[dict[Any, Callable[[Any], Any]]] = {
    **dict.fromkeys((dict, Mapping, MutableMapping), dict),
    Counter: Counter,
    OrderedDict: OrderedDict,
}
_LIST_LIKE: Final = (list, tuple, set, frozenset, deque, range)


def build_converter(hint: Any) -> Converter | None:
    """Return the converter of a type hint, or None if a serde needs no help with its values.

    Raises UnsupportedHintError, NameError if a hint in it names a class that does not exist yet.
    """
    if hint_support.is_exact(hint):
        return None
    converter = _build_inexact(hint)
    for part in hint_support.walk(hint, {}):
        if _is_plain_class(part):
            _build_fields(part).check()
    return converter


def _build_inexact(hint: Any) -> Converter:
    if hint_support.is_recursive(hint):
        return _build_with_pydantic(hint)
    if (target := hint_support.alias_target(hint)) is not None:
        return _build_part(target)
    if _is_plain_class(hint):
        return _build_fields(hint)
    origin = get_origin(hint)
    if origin in (type, Callable):
        raise UnsupportedHintError(hint, "a function or a class cannot be sent; send its name")
    if origin is typing.Annotated:
        return _build_annotated(hint, get_args(hint)[0])
    try:
        return _build_of_parts(hint, origin, get_args(hint)) or _build_with_pydantic(hint)
    except UnsupportedHintError:
        return _build_with_pydantic(hint)


def _build_of_parts(hint: Any, origin: Any, parts: Sequence[Any]) -> Converter | None:
    """Return a converter that uses a converter of each part of the hint; None for a hint without parts."""
    if hint_support.is_union(hint):
        return build_union(hint, _build_part)
    if origin is tuple and parts[-1:] != (...,):
        return _build_tuple(parts)
    if origin in _LISTS or origin is tuple:
        return _build_list(_LISTS.get(origin, tuple), parts[0])
    if origin in _DICTS:
        return _build_dict(_DICTS[origin], *(parts if len(parts) > 1 else (parts[0], int)))
    if typing.is_typeddict(hint):
        return _build_typed_dict(hint)
    if hasattr(hint, "_field_defaults"):
        return _build_named_tuple(hint)
    return _build_enum(hint) if isinstance(hint, type) and issubclass(hint, Enum) else None


def _build_part(hint: Any) -> Converter:
    """Return a converter also for a hint that needs none."""
    if hint_support.is_exact(hint):
        return FunctionConverter(unchanged, lambda plain: convert(plain, hint))
    return _build_inexact(hint)


def _build_annotated(hint: Any, inner: Any) -> Converter:
    """Return a converter that decodes `inner` and then checks the constraints of Annotated[inner, ...]."""
    if any(isinstance(one, msgspec.Meta) for one in hint.__metadata__):
        raise UnsupportedHintError(hint, "msgspec.Meta has no effect on this type")
    if not any(map(hint_support.is_constraint, hint.__metadata__)):
        return _build_part(inner)
    if any(_replaces_schema(one) for one in hint.__metadata__):
        return _build_with_pydantic(hint)
    part, (pydantic, adapter) = _build_part(inner), _make_adapter(hint)
    return FunctionConverter(part.dump, lambda plain: pydantic.validate_object(adapter, part.load(plain)))


def _replaces_schema(metadata: Any) -> bool:
    """Return whether metadata of pydantic changes how a type is encoded and decoded."""
    return hasattr(metadata, "__get_pydantic_core_schema__") or bool(getattr(metadata, "discriminator", None))


def _build_list(make: Callable[[Iterable[Any]], Any], item: Any) -> Converter:
    part = _build_part(item)
    return FunctionConverter(
        lambda value: [part.dump(one) for one in value] if isinstance(value, _LIST_LIKE) else value,
        lambda plain: make([part.load(one) for one in convert(plain, list)]),
    )


def _build_tuple(items: Sequence[Any]) -> Converter:
    parts = [_build_part(item) for item in items]

    def load(plain: Any) -> tuple[Any, ...]:
        found = convert(plain, list)
        if len(found) != len(parts):
            raise ValueError(f"Expected `array` of length {len(parts)}, got {len(found)}")
        return tuple(part.load(one) for part, one in zip(parts, found, strict=True))

    def dump(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            return value
        return [part.dump(one) for part, one in zip(parts, value, strict=True)]

    return FunctionConverter(dump, load)


def _build_named_tuple(kind: Any) -> Converter:
    hints = hint_support.field_hints(kind)
    parts = [_build_part(hints.get(name, Any)) for name in kind._fields]
    least = len(parts) - len(kind._field_defaults)

    def load(plain: Any) -> Any:
        found = convert(plain, list)
        if not least <= len(found) <= len(parts):
            raise ValueError(f"Expected `array` of length {least} to {len(parts)}, got {len(found)}")
        return kind(*(part.load(one) for part, one in zip(parts, found, strict=False)))

    def dump(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) > len(parts):
            return value
        return [part.dump(one) for part, one in zip(parts, value, strict=False)]

    return FunctionConverter(dump, load)


def _build_dict(make: Callable[[Any], Any], key: Any, value: Any) -> Converter:
    if not hint_support.is_exact(key):
        raise UnsupportedHintError(dict[key, value], "its keys have no text form")
    part, keyed = _build_part(value), dict[key, Any]
    return FunctionConverter(
        lambda given: {k: part.dump(v) for k, v in given.items()} if isinstance(given, Mapping) else given,
        lambda plain: make({k: part.load(v) for k, v in convert(plain, keyed).items()}),
    )


def _build_enum(kind: type[Enum]) -> Converter:
    """Return a converter of an Enum whose values are not all str or all int; members are sent by value."""
    try:
        members = {msgspec.json.encode(one.value): one for one in kind}
    except TypeError as error:
        raise UnsupportedHintError(kind, f"one of its values cannot be sent: {error}") from None

    def load(plain: Any) -> Enum:
        found = members.get(msgspec.json.encode(plain))
        if found is None:
            raise ValueError(f"Invalid enum value for {kind.__qualname__}")
        return found

    return FunctionConverter(lambda value: value.value if isinstance(value, kind) else value, load)


def _build_typed_dict(kind: Any) -> Converter:
    parts = {key: _build_part(hint) for key, hint in hint_support.field_hints(kind).items()}

    def dump(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: parts[key].dump(item) if key in parts else item for key, item in value.items()}

    def load(plain: Any) -> dict[str, Any]:
        given: dict[str, Any] = convert(plain, dict[str, Any])
        if missing := kind.__required_keys__ - given.keys():
            raise ValueError(f"Object missing required field `{min(missing)}`")
        return {key: part.load(given[key]) for key, part in parts.items() if key in given}

    return FunctionConverter(dump, load)


def _is_plain_class(hint: Any) -> bool:
    """Return whether a hint is a dataclass or an attrs class, and neither generic nor pydantic's."""
    if not isinstance(hint, type) or hint_support.is_validated(hint) or hasattr(hint, "__parameters__"):
        return False
    return attrs.has(hint) or dataclasses.is_dataclass(hint)


@lru_cache(maxsize=1024)
def _build_fields(kind: type) -> FieldsConverter:
    """Return the converter of a class. It is cached, because a class may have fields of its own type."""
    return FieldsConverter(kind)


class FieldsConverter:
    """The converter of a dataclass or an attrs class with a field that needs a converter.

    Objects are sent by the names of their fields, as msgspec does it, and made by the constructor.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def check(self) -> None:
        """Raise UnsupportedHintError for a field without a converter, NameError for an unknown class."""
        self._fields  # noqa: B018 - reading the property builds the converters

    @cached_property
    def _fields(self) -> dict[str, tuple[str, Converter]]:
        """Each field with its name in the constructor and its converter.

        They are read at the first use, because a class may have fields of its own type.
        """
        kind, hints = self._kind, hint_support.field_hints(self._kind)
        if attrs.has(kind):
            names = {one.name: one.alias or one.name for one in attrs.fields(kind) if one.init}
        else:
            names = {one.name: one.name for one in dataclasses.fields(kind) if one.init}
        return {name: (alias, _build_part(hints.get(name, Any))) for name, alias in names.items()}

    def dump(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            return value
        return {name: part.dump(getattr(value, name)) for name, (_, part) in self._fields.items()}

    def load(self, plain: Any) -> Any:
        given: dict[str, Any] = convert(plain, dict[str, Any])
        arguments = {}
        for name, (alias, part) in self._fields.items():
            if name in given:
                try:
                    arguments[alias] = part.load(given[name])
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{error} - at `$.{name}`") from None
        return self._kind(**arguments)


def _build_with_pydantic(hint: Any) -> Converter:
    """Return a converter that lets pydantic encode and decode the values."""
    pydantic, adapter = _make_adapter(hint)
    traits = pydantic.read_traits(hint)
    return FunctionConverter(
        lambda value: pydantic.encode_as(adapter, value, traits),
        lambda plain: pydantic.validate(adapter, traits, plain),
    )


def _make_adapter(hint: Any) -> tuple[Any, Any]:
    """Return the module with the functions for pydantic's types, and pydantic's TypeAdapter of a hint."""
    try:
        from dibs.client.options import pydantic_values  # noqa: PLC0415 - imports pydantic, which is optional
    except ImportError:
        raise UnsupportedHintError(
            hint, "dibs has no form for it; pydantic may have one, but is not installed"
        ) from None
    try:
        return pydantic_values, pydantic_values.make_adapter(hint)
    except TypeError:
        raise UnsupportedHintError(hint, "neither msgspec nor pydantic knows how to decode it") from None
