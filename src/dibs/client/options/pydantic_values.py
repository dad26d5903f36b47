"""Values of pydantic: models, secrets, URLs and other types that pydantic validates.

This module imports pydantic, so only code that has met such a value or type imports this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import to_jsonable_python

#: Types whose values pydantic dumps as a list, in the order of the value.
_LISTS: Final = (list, tuple, set, frozenset, deque)


class Traits(NamedTuple):
    """The way to dump a type with pydantic so that pydantic validates the dump to an equal value."""

    #: False if a field has different aliases for validation and serialization, or a dataclass has aliases:
    #: then the keys are field names.
    by_alias: bool
    #: True if a field is a secret, which pydantic dumps as asterisks.
    has_secrets: bool


def find_encoder(kind: Any) -> Callable[[Any], Any]:
    """Return the function that returns a value of a type with a pydantic schema as plain data."""
    if issubclass(kind, BaseModel):
        return encode_model
    if is_secret(kind):
        return lambda value: to_jsonable_python(value.get_secret_value())
    wanted = adapter(kind)
    return lambda value: wanted.dump_python(value, mode="json")


def encode_model(value: BaseModel) -> Any:
    """Return a model as plain data, with the values of its secrets."""
    # The JSON form for every serde, so that a model that JSON can encode is accepted by MessagePack too.
    how = traits(type(value))
    # A warning would show the values. A value of a wrong type is refused when the payload is decoded.
    dumped = value.model_dump(mode="json", by_alias=how.by_alias, round_trip=True, warnings="none")
    return _reveal(value, dumped, how) if how.has_secrets else dumped


def find_decoder(kind: Any) -> Callable[[Any], Any]:
    """Return the function that returns plain data as a type with a pydantic schema. It raises ValueError."""
    return partial(validate, adapter(kind), traits(kind))


def encode_as(wanted: TypeAdapter[Any], value: Any, how: Traits) -> Any:
    """Return a value of a type hint as plain data; a value of another type is returned as it is."""
    dumped = wanted.dump_python(value, mode="json", by_alias=how.by_alias, round_trip=True, warnings="none")
    return _reveal(value, dumped, how) if how.has_secrets else dumped


def validate(wanted: TypeAdapter[Any], how: Traits, value: Any) -> Any:
    """Return plain data, validated. Raises ValueError, whose message has no input value."""
    # Validated as JSON, because a strict model accepts a date as text only from JSON.
    raw = msgspec.json.encode(value)
    try:
        if how.by_alias:
            return wanted.validator.validate_json(raw)
        return wanted.validate_json(raw, by_alias=True, by_name=True)
    except ValidationError as error:
        raise ValueError(describe(error)) from None


def validate_object(wanted: TypeAdapter[Any], value: Any) -> Any:
    """Return a value of the right type after the check of its constraints. Raises ValueError."""
    try:
        return wanted.validate_python(value)
    except ValidationError as error:
        raise ValueError(describe(error)) from None


def describe(error: ValidationError) -> str:
    """Return the message of an error without the input values, which may hold secrets."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in details
    )


def make_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the TypeAdapter of a type hint. Raises TypeError for a type that pydantic does not know."""
    try:
        made = TypeAdapter(kind)
        if not made.pydantic_complete:
            raise TypeError("a name in this type does not exist")
        return made
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        if isinstance(error, NameError):
            raise
        raise TypeError(str(error)) from None


def read_traits(kind: Any) -> Traits:
    """Return how pydantic has to dump values of a type hint."""
    by_alias, has_secrets = True, False
    for part in _parts(kind, set()):
        has_secrets = has_secrets or is_secret(part)
        for name, field in pydantic_fields(part).items():
            accepted = name if field.validation_alias is None else field.validation_alias
            # Dataclasses are stored by the names of their fields, also those without pydantic.
            stored = name if is_dataclass(part) else field.serialization_alias or name
            by_alias = by_alias and stored == accepted
    return Traits(by_alias, has_secrets)


#: `make_adapter` and `read_traits` of classes and other hashable hints, remembered.
adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(maxsize=1024)(make_adapter)
traits: Callable[[Any], Traits] = lru_cache(maxsize=1024)(read_traits)


def _parts(kind: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a type, its arguments, and the types of the fields of classes, recursively."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    yield kind
    for part in (*get_args(kind), *_field_types(kind), getattr(kind, "__value__", None)):
        yield from _parts(part, seen)


def _field_types(kind: Any) -> Iterator[Any]:
    """Yield the types of the fields of a model, a dataclass, a TypedDict or a NamedTuple."""
    if fields := pydantic_fields(kind):
        yield from (field.annotation for field in fields.values())
    elif isinstance(kind, type) and (
        is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_field_defaults")
    ):
        with suppress(NameError):  # Pydantic also finds names that are no globals of the module.
            yield from get_type_hints(kind).values()


def pydantic_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a model class or a pydantic dataclass by name; {} for other types."""
    return getattr(kind, "__pydantic_fields__", {}) if isinstance(kind, type) else {}


def is_secret(kind: Any) -> bool:
    """Return whether a type is SecretStr, SecretBytes, a Secret[...] or a subclass."""
    return hasattr(get_origin(kind) or kind, "get_secret_value")


def _reveal(value: Any, dumped: Any, how: Traits) -> Any:
    """Return dumped data with the value of each secret instead of its asterisks."""
    if is_secret(type(value)):
        return to_jsonable_python(value.get_secret_value())
    if isinstance(value, RootModel):
        return _reveal(value.root, dumped, how)
    if isinstance(dumped, dict):
        return dumped | dict(_reveal_entries(value, dumped, how))
    if isinstance(value, _LISTS) and isinstance(dumped, list):
        return [_reveal(*pair, how) for pair in zip(value, dumped, strict=False)]
    return dumped


def _reveal_entries(value: Any, dumped: dict[str, Any], how: Traits) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for (key, entry), item in zip(dumped.items(), value.values(), strict=False):
            yield key, _reveal(item, entry, how)
    known = pydantic_fields(type(value))
    for name in known or getattr(value, "__dataclass_fields__", {}):
        key = (how.by_alias and name in known and known[name].serialization_alias) or name
        if key in dumped:
            yield key, _reveal(getattr(value, name), dumped[key], how)
