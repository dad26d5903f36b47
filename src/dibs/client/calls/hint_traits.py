"""Traits of a type hint, which decide how a given and an arrived value of the hint are compared.

The fields of objects are those of dataclasses, attrs classes, Structs, pydantic models and other classes.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import time
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import attrs
import msgspec

#: Returns the values of an object's fields by name. A field without a value is left out.
FieldReader = Callable[[Any], Mapping[str, Any]]


@lru_cache(maxsize=1024)
def field_reader(kind: Any) -> FieldReader | None:
    """Return the function that reads the fields of an object; None if `==` compares all it holds."""
    if issubclass(kind, Enum):
        return None
    if is_model_class(kind):
        return _read_model
    if (names := encoded_names(kind)) is not None:
        return lambda value: {name: getattr(value, name) for name in names if hasattr(value, name)}
    return _read_attributes if kind.__eq__ is object.__eq__ else None


@lru_cache(maxsize=1024)
def encoded_names(kind: Any) -> Mapping[str, str] | None:
    """Return the payload's key by field, for a dataclass, attrs class or Struct; None for another class."""
    if issubclass(kind, msgspec.Struct):
        return {one.name: one.encode_name for one in msgspec.structs.fields(kind)}
    if attrs.has(kind):
        return {one.name: one.name for one in attrs.fields(kind)}
    if dataclasses.is_dataclass(kind):
        return {one.name: one.name for one in dataclasses.fields(kind)}
    return None


def is_model_class(kind: type) -> bool:
    """Return whether a class is a pydantic model, without an import of pydantic."""
    return issubclass(kind, getattr(sys.modules.get("pydantic"), "BaseModel", ()))


def is_pydantic_imported() -> bool:
    return "pydantic" in sys.modules


def model_origin(kind: type) -> type:
    """Return the generic model of a parametrized one, as `Box` of `Box[int]`, and any other class as it is.

    Pydantic's `==` uses the same rule.
    """
    metadata = getattr(kind, "__pydantic_generic_metadata__", None) or {}
    return metadata.get("origin") or kind


def _read_model(model: Any) -> Mapping[str, Any]:
    """Return the fields, extra fields and private attributes of a model, without cached properties."""
    kept = {name: model.__dict__[name] for name in type(model).model_fields if name in model.__dict__}
    return {**kept, **(model.__pydantic_extra__ or {}), **(model.__pydantic_private__ or {})}


def _read_attributes(value: Any) -> Mapping[str, Any]:
    """Return the attributes of an object whose class inherits `==` from object: it is never equal."""
    slots = [name for base in type(value).__mro__ for name in _slots(base) if hasattr(value, name)]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(
        name for name in names if name not in {"__dict__", "__weakref__"} and not name.startswith("__")
    )


#: Modules whose classes compare all that they hold with `==`, except those of _LOOSE_EQUALITY.
_MODULES_WITH_EQUALITY: Final = frozenset(
    {
        "builtins",
        "collections",
        "collections.abc",
        "datetime",
        "decimal",
        "ipaddress",
        "pathlib",
        "pydantic.networks",
        "pydantic.types",
        "types",
        "typing",
        "uuid",
    }
)
#: `==` of Counter ignores counts of 0, and `==` of time ignores a time zone without a fixed offset.
_LOOSE_EQUALITY: Final = (Counter, time)


@attrs.frozen
class HintTraits:
    """Traits of a type hint, for the comparison of its values."""

    untyped: bool
    """True if the hint contains Any, so that a part of a value may arrive in its JSON form."""
    equality: bool
    """True if `==` of two values of the hint compares all that they hold."""


def read_traits(hint: Any) -> HintTraits:
    reader = _TraitReader()
    reader.read(hint)
    return HintTraits(reader.untyped, reader.equality)


class _TraitReader:
    """A walk through a type hint and the hints of the fields of its classes."""

    def __init__(self) -> None:
        self.untyped = False
        self.equality = True
        #: The hints that were read, by their ids. It keeps the hints, so that no id is used twice.
        self._known: dict[int, Any] = {}

    def read(self, hint: Any) -> None:
        if id(hint) in self._known:
            return
        self._known[id(hint)] = hint
        origin, parts = get_origin(hint), get_args(hint)
        if origin is typing.Literal or hint is None or hint is Ellipsis:
            return
        for part in parts[:1] if origin is typing.Annotated else parts:
            self.read(part)
        if hint is Any:  # A class since Python 3.11.
            self.untyped = True
        elif isinstance(kind := origin or hint, type):
            self._read_class(kind, has_parts=bool(parts))
        elif origin is None:
            self._read_form(hint)

    def _read_form(self, hint: Any) -> None:
        """Add the traits of a hint that is no class: a type variable, a NewType or a named alias."""
        if isinstance(hint, TypeVar):
            self.untyped = True
        elif (meant := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
            self.read(meant)
        else:
            self.equality = False

    def _read_class(self, kind: type, *, has_parts: bool) -> None:
        if kind is object or (not has_parts and _is_container(kind)):
            self.untyped = True
        elif is_model_class(kind):
            self._read_model(kind)
        elif encoded_names(kind) is not None:
            self.equality &= _has_generated_equality(kind)
            self._read_fields(kind)
        elif typing.is_typeddict(kind) or hasattr(kind, "_fields"):
            self._read_fields(kind)
        elif not issubclass(kind, Enum):
            self.equality &= kind not in _LOOSE_EQUALITY and kind.__module__ in _MODULES_WITH_EQUALITY

    def _read_fields(self, kind: type) -> None:
        try:
            hints = get_type_hints(kind, include_extras=True)
        except (NameError, TypeError):
            self.equality = False
            return
        for hint in hints.values():
            self.read(hint)

    def _read_model(self, kind: Any) -> None:
        self.equality &= kind.__eq__.__module__ == "pydantic.main"
        for field in kind.model_fields.values():
            self.read(field.annotation)


def _is_container(kind: type) -> bool:
    return kind in {list, tuple, set, frozenset, dict} or kind.__module__ in {
        "collections",
        "collections.abc",
    }


def _has_generated_equality(kind: Any) -> bool:
    """Return whether the `==` of a dataclass, attrs class or Struct was generated and compares all fields."""
    if issubclass(kind, msgspec.Struct):
        return kind.__eq__ is msgspec.Struct.__eq__ and kind.__struct_config__.eq
    code = getattr(vars(kind).get("__eq__"), "__code__", None)
    if code is None:
        return False
    if attrs.has(kind):
        fields = attrs.fields(kind)
        return "attrs generated" in code.co_filename and all(one.eq and one.eq_key is None for one in fields)
    return "__create_fn__" in code.co_qualname and all(one.compare for one in dataclasses.fields(kind))
