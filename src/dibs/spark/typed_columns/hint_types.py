"""Spark's types for type hints, as DDL. The hints are those that the default serde writes as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import inspect as hints

#: The type of a value without a simpler type: a string with its JSON text.
TEXT: Final = "string"

_SCALARS: Final[dict[type[hints.Type], str]] = {
    hints.BoolType: "boolean",
    hints.IntType: "bigint",
    hints.FloatType: "double",
    hints.BytesType: "binary",
    hints.ByteArrayType: "binary",
    hints.DateTimeType: "timestamp",
    hints.DateType: "date",
    hints.DecimalType: "decimal(38,18)",
}
_ARRAYS: Final = (hints.ListType, hints.SetType, hints.FrozenSetType, hints.VarTupleType)
_OBJECTS: Final = (hints.StructType, hints.DataclassType, hints.TypedDictType)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def spark_type(hint: Any) -> str:
    """Return the Spark type of a type hint.

    Objects with named fields become a struct, lists and sets an array, and dicts a map. A hint without such
    a type, for example a union of two classes or a class of your own, becomes `string`, with the JSON text
    of the value.
    """
    try:
        return _ddl(hints.type_info(hint), ())
    except (TypeError, NameError, msgspec.ValidationError):
        return TEXT


def parameter_types(function: Callable[..., Any]) -> dict[str, tuple[int | None, str]]:
    """Return the parameters of a function: name -> position (None: only by name) and Spark type.

    `*args` and `**kwargs` are left out.
    """
    resolved = get_type_hints(function)
    found: dict[str, tuple[int | None, str]] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _VARIADIC:
            continue
        by_position = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        kind = spark_type(resolved.get(parameter.name, Any))
        found[parameter.name] = (position if by_position else None, kind)
    return found


def result_type(function: Callable[..., Any]) -> str:
    """Return the Spark type of a function's result."""
    return spark_type(get_type_hints(function).get("return", Any))


def _ddl(kind: hints.Type, inside: tuple[type, ...]) -> str:
    """Return the DDL of a type. `inside` are the classes around it: a struct cannot contain itself."""
    if (scalar := _SCALARS.get(type(kind))) is not None:
        return scalar
    if isinstance(kind, _ARRAYS):
        return f"array<{_ddl(kind.item_type, inside)}>"
    if isinstance(kind, hints.DictType):
        return f"map<string,{_ddl(kind.value_type, inside)}>"
    if isinstance(kind, _OBJECTS):
        return _object_ddl(kind, inside)
    if isinstance(kind, hints.UnionType):
        return _union_ddl(kind, inside)
    if isinstance(kind, (hints.LiteralType, hints.EnumType)):
        return _values_ddl(kind.values if isinstance(kind, hints.LiteralType) else kind.cls)
    return TEXT


def _object_ddl(
    kind: hints.StructType | hints.DataclassType | hints.TypedDictType, inside: tuple[type, ...]
) -> str:
    if kind.cls in inside or not kind.fields or getattr(kind, "array_like", False):
        return TEXT
    around = (*inside, kind.cls)
    fields = (f"{quote_name(field.encode_name)}: {_ddl(field.type, around)}" for field in kind.fields)
    return f"struct<{', '.join(fields)}>"


def _union_ddl(kind: hints.UnionType, inside: tuple[type, ...]) -> str:
    found = {_ddl(part, inside) for part in kind.types if not isinstance(part, hints.NoneType)}
    if found == {"bigint", "double"}:
        return "double"
    return found.pop() if len(found) == 1 else TEXT


def _values_ddl(values: Iterable[Any]) -> str:
    plain = [getattr(value, "value", value) for value in values]
    return "bigint" if all(type(value) is int for value in plain) else TEXT


def quote_name(name: str) -> str:
    """Return the name of a field as Spark's DDL quotes it."""
    return f"`{name.replace('`', '``')}`"
