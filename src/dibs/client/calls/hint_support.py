"""Checks of type hints: msgspec, with the hooks of dibs, encodes and decodes most of them exactly."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from collections.abc import (
    Set as AbstractSet,
)
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs
import msgspec

from dibs.client.options.value_hooks import dec_hook, is_hooked, value_class

#: Types that msgspec encodes and decodes, without classes that have fields, and Enum.
_KNOWN: Final = frozenset(
    {
        *(type(None), bool, int, float, str, bytes, bytearray, memoryview),
        *(datetime, date, time, timedelta, Decimal, UUID),
        *(list, tuple, set, frozenset, dict, msgspec.Raw, msgspec.msgpack.Ext, msgspec.UnsetType),
        *(Collection, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence, AbstractSet),
    }
)
#: Packages whose metadata in Annotated[...] msgspec ignores, but pydantic applies.
_VALIDATING: Final = ("annotated_types", "pydantic", "pydantic_core")


def is_exact(hint: Any) -> bool:
    """Return whether msgspec decodes values of the hint as they were encoded, with dec_hook."""
    if isinstance(hint, type) and (hint in _KNOWN or hint is Any):
        return True
    return all(map(_is_known, walk(hint, {}))) and _is_accepted(hint)


def is_constraint(metadata: Any) -> bool:
    """Return whether pydantic applies this metadata of Annotated[...]."""
    package = type(metadata).__module__.partition(".")[0]
    return package in _VALIDATING or hasattr(metadata, "__get_pydantic_core_schema__")


def walk(hint: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a hint, the hints inside it, and the hints of the fields of classes that msgspec takes apart.

    `seen` holds the yielded hints by `id()`.
    """
    if id(hint) in seen:
        return
    seen[id(hint)] = hint
    yield hint
    if get_origin(hint) is typing.Literal:
        return
    inner = [part for part in get_args(hint) if not isinstance(part, list)]
    if get_origin(hint) is typing.Annotated:
        inner = inner[:1]
    fields = get_origin(hint) or hint
    if has_fields(fields) and not is_validated(fields):
        inner += field_hints(fields).values()
    for part in (*inner, alias_target(hint)):
        yield from walk(part, seen)


def alias_target(hint: Any) -> Any:
    """Return the type that a NewType or a `type` statement stands for; None for other hints.

    `Twice[int]` of `type Twice[One] = tuple[One, One]` is tuple[int, int].
    """
    target: Any = getattr(hint, "__supertype__", None)
    if target is None:
        target = getattr(hint, "__value__", None)
    if not (free := getattr(target, "__parameters__", ())) or not get_args(hint):
        return target
    given = dict(zip(hint.__type_params__, get_args(hint), strict=False))
    return target[tuple(given.get(one, one) for one in free)]


def is_recursive(hint: Any, above: tuple[Any, ...] = ()) -> bool:
    """Return whether a hint contains an alias that contains itself, such as `type Json = list[Json] | str`.

    An alias with a part in quotes counts, because only pydantic resolves the name.
    """
    if hint in above or isinstance(hint, str | typing.ForwardRef):
        return True
    if get_origin(hint) is typing.Literal or isinstance(hint, list):
        return False
    if (target := alias_target(hint)) is not None:
        return is_recursive(target, (*above, hint))
    parts = get_args(hint)[:1] if get_origin(hint) is typing.Annotated else get_args(hint)
    return any(is_recursive(part, above) for part in parts)


def union_members(hint: Any) -> list[Any]:
    """Return the members of a union, with those of unions that an alias stands for."""
    found: list[Any] = []
    for part in get_args(hint):
        meant = part
        while (target := alias_target(meant)) is not None:
            meant = target
        found += union_members(meant) if is_union(meant) else [part]
    return list(dict.fromkeys(found)) if all(map(_is_hashable, found)) else found


def field_hints(kind: Any) -> dict[str, Any]:
    """Return the type hints of the fields of a class. Raises NameError for a class that does not exist."""
    parameters = {one.__name__: one for base in kind.__mro__ for one in getattr(base, "__type_params__", ())}
    # Python 3.12 does not find the type parameters of `class Node[T]` in hints that are text.
    hints = get_type_hints(kind, localns=parameters or None, include_extras=True)
    return {name: _strip_qualifier(hint) for name, hint in hints.items()}


def _strip_qualifier(hint: Any) -> Any:
    """Return `int` for Required[int], NotRequired[int] and ReadOnly[int] of a TypedDict."""
    name = getattr(get_origin(hint), "_name", None)
    return _strip_qualifier(get_args(hint)[0]) if name in {"Required", "NotRequired", "ReadOnly"} else hint


def _is_hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:  # metadata of Annotated[...]
        return False
    return True


def has_fields(kind: Any) -> bool:
    """Return whether a class is a dataclass, an attrs class, a Struct, a NamedTuple or a TypedDict."""
    if not isinstance(kind, type):
        return False
    known = dataclasses.is_dataclass(kind) or attrs.has(kind) or typing.is_typeddict(kind)
    return known or issubclass(kind, msgspec.Struct) or hasattr(kind, "_field_defaults")


def is_validated(kind: Any) -> bool:
    """Return whether a class is a dataclass of pydantic, which msgspec would not validate."""
    return hasattr(kind, "__is_pydantic_dataclass__")


def has_private_attributes(kind: Any) -> bool:
    """Return whether an attrs class has fields that its constructor takes without the underscore."""
    return (
        isinstance(kind, type)
        and attrs.has(kind)
        and any(one.name != one.alias for one in attrs.fields(kind))
    )


def _is_known(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is typing.Annotated:
        return not any(map(is_constraint, hint.__metadata__))
    kind = origin or hint
    if not isinstance(kind, type) or kind in {Any, types.UnionType} or kind in _KNOWN:
        return True  # a class, or a part of a hint that is no class: a union, a NewType, a type variable
    if is_validated(kind) or has_private_attributes(kind):
        return False
    if has_fields(kind) or issubclass(kind, Enum):
        return True
    # msgspec does not look at the parts of a class that it does not know, such as deque.
    return is_hooked(hint) and value_class(kind) is kind and all(map(_is_accepted, get_args(hint)))


def _is_accepted(hint: Any) -> bool:
    """Return whether msgspec accepts a hint; it refuses unions of types with the same form in JSON."""
    try:
        msgspec.json.Decoder(hint, dec_hook=dec_hook)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def describe(hint: Any) -> str:
    """Return a type hint as programs write it: `str | datetime`, `list[Order]`."""
    if get_origin(hint) is None and (isinstance(hint, type) or alias_target(hint) is not None):
        return str(hint.__name__)
    parts = get_args(hint)
    if get_origin(hint) is typing.Annotated:
        return f"Annotated[{', '.join([describe(parts[0]), *map(_describe_metadata, hint.__metadata__)])}]"
    if is_union(hint):
        return " | ".join("None" if part is type(None) else describe(part) for part in parts)
    if parts and isinstance(get_origin(hint), type):
        return f"{get_origin(hint).__qualname__}[{', '.join(map(describe, parts))}]"
    if isinstance(hint, list):  # the parameters of Callable[[int], str]
        return f"[{', '.join(map(describe, hint))}]"
    return "..." if hint is Ellipsis else str(hint).replace("typing.", "")


def _describe_metadata(metadata: Any) -> str:
    """Return a Field of pydantic as its constraints, because its repr has all its settings."""
    if (discriminator := getattr(metadata, "discriminator", None)) is not None:
        return f"Field(discriminator={discriminator!r})"
    return ", ".join(map(repr, getattr(metadata, "metadata", ()))) or repr(metadata)


def is_union(hint: Any) -> bool:
    """Return whether a hint is `A | B`, Union[A, B] or Optional[A]."""
    return get_origin(hint) in (typing.Union, types.UnionType)
