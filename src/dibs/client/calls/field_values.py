"""The fields of objects: of dataclasses, attrs classes, Structs, pydantic models and other classes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

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
