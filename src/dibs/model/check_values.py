"""Checks of single values: numbers, text, bytes, JSON. Each check raises Refused and names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec

from dibs.errors import Refused
from dibs.model.limits import LIMITS, SAFE_INTEGER, Limits


def check_whole(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within low..high."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{field} must be a whole number, not {type(value).__name__}", field=field)
    if not low <= value <= high:
        # Python refuses to write out thousands of digits.
        shown = value if abs(value) < 2**64 else "far too large"
        raise Refused(f"{field} is {shown}; it must be {low} to {high}", field=field)


def check_number(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within low..high; None passes."""
    if value is not None:
        check_whole(field, value, low, high)


def check_text(field: str, text: str, limit: int) -> None:
    """Refuse text that is empty, too long, not UTF-8, or holds NUL."""
    if not isinstance(text, str):
        raise Refused(f"{field} must be text, not {type(text).__name__}", field=field)
    size = len(text) if text.isascii() else len(_utf8(field, text))
    if not 0 < size <= limit:
        raise Refused(f"{field} has {size} bytes; it must have 1 to {limit}", field=field)
    if "\0" in text:
        raise Refused(f"{field} holds a NUL character; leave it out", field=field)


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{field} holds a lone surrogate, which UTF-8 cannot say", field=field) from None


def check_bytes(field: str, value: bytes, limit: int) -> None:
    """Refuse bytes that are too many."""
    if not isinstance(value, bytes):
        raise Refused(f"{field} must be bytes, not {type(value).__name__}", field=field)
    if len(value) > limit:
        raise Refused(
            f"{field} has {len(value)} bytes; the limit is {limit}: store it elsewhere and send its address",
            field=field,
        )


def check_attributes(attributes: Mapping[str, bytes], limits: Limits = LIMITS) -> None:
    """Refuse attributes that are too large or hold what is no JSON every storage can keep."""
    if not isinstance(attributes, Mapping):
        raise Refused(
            f"attributes must map names to encoded JSON, not be {type(attributes).__name__}",
            field="attributes",
        )
    size = 0
    for name, value in attributes.items():
        field = f"attributes[{name!r:.60}]"
        check_text(field, name, limits.attributes)
        check_bytes(field, value, limits.attributes)
        size += len(name.encode()) + len(value)
    if size > limits.attributes:
        raise Refused(
            f"attributes have {size} bytes; the limit is {limits.attributes}: use the payload instead",
            field="attributes",
        )
    for name, value in attributes.items():
        check_json(f"attributes[{name!r:.60}]", value, limits.depth)


def check_json(field: str, encoded: bytes, depth: int = LIMITS.depth) -> None:
    """Refuse bytes that are no JSON, nested too deep, or with text or numbers some storage can't keep."""
    try:
        value = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{field} is no JSON: {error}", field=field) from None
    check_value(field, value, depth, integers=True)


def check_value(field: str, value: Any, depth: int = LIMITS.depth, *, integers: bool = False) -> None:
    """Refuse a JSON value with NaN, infinity, NUL, lone surrogates, too deep, or beyond 2**53."""
    if isinstance(value, (dict, list, tuple)):
        _check_nested(field, value, depth, integers=integers)
    else:
        check_scalar(field, value, integers=integers)


def check_scalar(field: str, value: object, *, integers: bool = False) -> None:
    """Refuse text or a number that JSON cannot say; what holds other values passes."""
    if isinstance(value, str):
        if "\0" in value:
            raise Refused(f"{field} holds a NUL character; leave it out", field=field)
        if not value.isascii():
            _utf8(field, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"{field} holds {value}, which JSON cannot say", field=field)
    elif isinstance(value, int) and integers and abs(value) > SAFE_INTEGER:
        raise Refused(f"{field} holds an integer beyond 2**53; send it as text", field=field)


def _check_nested(field: str, value: Any, depth: int, *, integers: bool) -> None:
    """Go down level by level: recursion would end before a depth that a storage was given."""
    level, left = [value], depth
    while level:
        if left == 0:
            raise Refused(f"{field} is nested deeper than {depth}; flatten it", field=field)
        inside = list(chain.from_iterable(map(_members, level)))
        level, left = [item for item in inside if isinstance(item, dict | list | tuple)], left - 1
        for item in inside:
            check_scalar(field, item, integers=integers)


def _members(value: Any) -> Iterable[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else value
