"""Conversion of unions whose types have the same form in JSON, such as `str | datetime`.

A value whose type JSON alone does not show is sent as an object with one key, the name of its type:
`{"datetime": "2026-01-31T12:00:00Z"}`. Text, numbers, true, false and null are sent as they are.
"""

from __future__ import annotations

import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, get_args, get_origin

from attrs import frozen

from dibs.client.calls.converter import Converter, FunctionConverter, UnsupportedHintError, convert
from dibs.client.calls.hint_support import alias_target, describe, has_fields, union_members
from dibs.client.options.value_hooks import value_class

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
