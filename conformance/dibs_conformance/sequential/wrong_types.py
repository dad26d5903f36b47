"""A table of wrong types, made from the signatures of the protocol.

For each argument of each verb, the table has values of other types. An argument that is a value object, such
as a request or a patch, also gets a row for each of its fields, and so on for the fields of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from attrs import frozen
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

#: The wrong values for each plain type, by their names in a report. None is wrong unless the type allows it.
WRONG: Final[dict[type, dict[str, Any]]] = {
    str: {"a number": 5, "bytes": b"seen", "a list": ["seen"]},
    bytes: {"text": "1", "a number": 5, "a bytearray": bytearray(b"1")},
    int: {"text": "1", "True": True, "a fraction": 1.5, "a list": [1]},
    float: {"text": "1", "True": True, "not a number": float("nan"), "a list": [1]},
    bool: {"1": 1, "text": "yes", "a list": [True]},
}
WRONG_LISTS: Final = {"a number": 5, "one text": "seen"}
WRONG_STRUCTS: Final = {"a number": 5, "text": "seen", "a mapping": {}}
#: Arguments that another rule of the contract describes.
NOT_BY_TYPE: Final = {"now"}


@frozen
class WrongValue:
    """A value of a wrong type: the path of the argument or field that is wrong, and the whole argument."""

    path: str
    #: The wrong value in words, such as "a number".
    kind: str
    argument: Any


def wrong_arguments(verb: Any, good: Mapping[str, Any]) -> Iterator[tuple[str, WrongValue]]:
    """Yield the name of an argument of a verb, and each wrong value for it.

    `good` has a valid value for the arguments; a value object in it is changed in one field at a time.
    """
    hints = get_type_hints(verb)
    for name in inspect.signature(verb).parameters:
        if name == "self" or name in NOT_BY_TYPE:
            continue
        for wrong in wrong_values(name, hints[name], good.get(name, UNSET)):
            yield name, wrong


def wrong_values(path: str, hint: Any, good: Any) -> Iterator[WrongValue]:
    """Yield the wrong values for a type, and those for the fields and items of the valid value `good`."""
    kinds = _alternatives(hint)
    if NoneType not in kinds:
        yield WrongValue(path, "None", None)
    plain = [kind for kind in kinds if kind not in (NoneType, UnsetType)]
    for kind, value in _wrong_for(plain).items():
        yield WrongValue(path, kind, value)
    yield from _inside(path, plain, good)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _wrong_for(kinds: Sequence[Any]) -> dict[str, Any]:
    """Return the wrong values that none of the alternatives allows."""
    tables = [_wrong_for_one(kind) for kind in kinds]
    shared = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {name: value for table in tables[:1] for name, value in table.items() if name in shared}


def _wrong_for_one(kind: Any) -> dict[str, Any]:
    origin = get_origin(kind)
    if kind in WRONG:
        return WRONG[kind]
    if origin is Literal:
        return {**WRONG[str], "an unknown word": "nonsense"}
    return WRONG_STRUCTS if origin is None else WRONG_LISTS


def _inside(path: str, kinds: Sequence[Any], good: Any) -> Iterator[WrongValue]:
    """Yield a copy of `good` with one wrong field, item or value, for each of them."""
    if isinstance(good, Struct):
        hints = get_type_hints(type(good))
        for field in good.__struct_fields__:
            for wrong in wrong_values(f"{path}.{field}", hints[field], getattr(good, field)):
                yield WrongValue(wrong.path, wrong.kind, replaced(good, field, wrong.argument))
        return
    for kind in kinds:
        origin = get_origin(kind)
        if origin is None or origin is Literal:
            continue
        if issubclass(origin, Mapping):
            yield from _inside_mapping(path, kind, good)
        else:
            yield from _inside_list(path, kind, good)


def replaced(good: Struct, field: str, value: Any) -> Struct:
    """Return a copy of a struct with one field replaced, without the checks of its class."""
    copy = replace(good)
    force_setattr(copy, field, value)
    return copy


def _inside_list(path: str, kind: Any, good: Any) -> Iterator[WrongValue]:
    """Yield copies of a valid list whose last item is wrong; for an empty list, a list of one wrong item."""
    items = list(good) if isinstance(good, list | tuple) else []
    make = tuple if isinstance(good, tuple) else list
    last = max(0, len(items) - 1)
    for wrong in wrong_values(f"{path}[{last}]", get_args(kind)[0], items[-1] if items else UNSET):
        yield WrongValue(wrong.path, wrong.kind, make([*items[:last], wrong.argument]))


def _inside_mapping(path: str, kind: Any, good: Any) -> Iterator[WrongValue]:
    keys, values = get_args(kind)
    held = dict(good) if isinstance(good, Mapping) else {}
    for wrong in wrong_values(f"a key of {path}", keys, UNSET):
        if getattr(type(wrong.argument), "__hash__", None) is not None:
            value = next(iter(held.values()), b"1" if values is bytes else "1")
            yield WrongValue(wrong.path, wrong.kind, {**held, wrong.argument: value})
    for wrong in wrong_values(f"{path}['x']", values, UNSET):
        yield WrongValue(wrong.path, wrong.kind, {**held, "x": wrong.argument})
