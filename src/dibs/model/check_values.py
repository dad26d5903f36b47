"""The checks of single values: numbers, text, bytes and JSON.

Each check raises Refused for a bad value; `field` names the value in the error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec

from dibs.errors import Refused
from dibs.model.limits import DAY, LATEST_TIME, LIMITS, LONGEST_TIME, SAFE_INTEGER, Limits


def check_whole_number(field: str, value: object, low: int, high: int, meaning: str = "") -> None:
    """Raise Refused unless `value` is an int from `low` to `high`, both included. A bool is refused.

    The error adds `meaning`, an explanation of `high`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{field} must be a whole number, not {type(value).__name__}", field=field)
    if not low <= value <= high:
        # Python raises ValueError when it formats an integer of thousands of digits.
        shown = value if abs(value) < 2**64 else "far too large"
        raise Refused(f"{field} is {shown}; it must be {low} to {high}{meaning}", field=field)


def check_duration(field: str, ms: object, low: int = 0, longest: int = LONGEST_TIME) -> None:
    """Raise Refused unless a duration is a whole number of ms, from `low` to `longest`."""
    check_whole_number(field, ms, low, longest, f" ms ({longest // DAY:,} days)")


def check_time(field: str, ms: object) -> None:
    """Raise Refused unless a time is a whole number of ms since the epoch, up to the end of the year 9998."""
    check_whole_number(field, ms, 0, LATEST_TIME, ", the end of the year 9998 in ms since the epoch")


def check_optional_number(field: str, value: object, low: int, high: int) -> None:
    """Raise Refused unless `value` is None or passes `check_whole_number`."""
    if value is not None:
        check_whole_number(field, value, low, high)


def check_text(field: str, text: str, limit: int) -> None:
    """Raise Refused unless `text` is 1 to `limit` bytes of UTF-8 without NUL."""
    if not isinstance(text, str):
        raise Refused(f"{field} must be text, not {type(text).__name__}", field=field)
    size = len(text) if text.isascii() else len(_encode_utf8(field, text))
    if not 0 < size <= limit:
        raise Refused(f"{field} has {size} bytes; it must have 1 to {limit}", field=field)
    if "\0" in text:
        raise Refused(f"{field} contains a NUL character; remove it", field=field)


def _encode_utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused(
            f"{field} contains a lone surrogate, which UTF-8 cannot encode; remove it", field=field
        ) from None


def check_is_text(field: str, text: object) -> None:
    """Raise Refused for another type than str. The limits of names and ids are not checked."""
    if not isinstance(text, str):
        raise Refused(f"{field} must be text, not {type(text).__name__}", field=field)


def check_flag(field: str, flag: object) -> None:
    """Raise Refused unless `flag` is True or False."""
    if not isinstance(flag, bool):
        raise Refused(f"{field} must be True or False, not {type(flag).__name__}", field=field)


def check_is_a(field: str, value: object, *kinds: type) -> None:
    """Raise Refused unless `value` is an instance of one of the classes `kinds`."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise Refused(f"{field} must be {names}, not {type(value).__name__}", field=field)


def check_is_list(field: str, items: object) -> None:
    """Raise Refused for a str, and for a value without a length and items: a batch is read more than once."""
    if type(items) is tuple or type(items) is list:
        return  # nearly every call; isinstance with an abstract class takes ten times as long
    if isinstance(items, (str, bytes)) or not isinstance(items, Collection):
        raise Refused(f"{field} must be a list, not {type(items).__name__}", field=field)


def check_bytes(field: str, value: bytes, limit: int) -> None:
    """Raise Refused unless `value` is a bytes object of at most `limit` bytes. A bytearray is refused."""
    if not isinstance(value, bytes):
        raise Refused(f"{field} must be bytes, not {type(value).__name__}", field=field)
    if len(value) > limit:
        raise Refused(
            f"{field} has {len(value)} bytes; the limit is {limit}: store it elsewhere and send its address",
            field=field,
        )


def check_attributes(attributes: Mapping[str, bytes], limits: Limits = LIMITS) -> None:
    """Raise Refused if the attributes are too large or a value is not JSON that every storage can keep."""
    if not isinstance(attributes, Mapping):
        raise Refused(
            f"attributes must map names to encoded JSON, not be {type(attributes).__name__}",
            field="attributes",
        )
    for name, value in attributes.items():
        field = f"attributes[{name!r:.60}]"
        check_text(field, name, limits.attributes)
        check_bytes(field, value, limits.attributes)
    size = size_of_attributes(attributes)
    if size > limits.attributes:
        raise Refused(
            f"attributes have {size} bytes; the limit is {limits.attributes}: use the payload instead",
            field="attributes",
        )
    for name, value in attributes.items():
        check_json(f"attributes[{name!r:.60}]", value, limits.depth)


def size_of_attributes(attributes: Mapping[str, bytes]) -> int:
    """Return the number of bytes of all names and values, to which the limit of attributes applies."""
    return sum(len(name.encode()) + len(value) for name, value in attributes.items())


def check_json(field: str, encoded: bytes, depth: int = LIMITS.depth) -> None:
    """Raise Refused unless the bytes are JSON that every storage can keep, nested at most `depth` deep."""
    try:
        value = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{field} is not valid JSON: {error}", field=field) from None
    check_json_value(field, value, depth, integers=True)


def check_json_value(field: str, value: Any, depth: int = LIMITS.depth, *, integers: bool = False) -> None:
    """Raise Refused if a decoded JSON value is nested deeper than `depth`, or a scalar in it is bad.

    `check_json_scalar` defines the bad scalars. `integers` is passed on to it.
    """
    if isinstance(value, (dict, list, tuple)):
        _check_nested(field, value, depth, integers=integers)
    else:
        check_json_scalar(field, value, integers=integers)


def check_json_scalar(field: str, value: object, *, integers: bool = False) -> None:
    """Raise Refused for NaN, infinity, and text that contains NUL or a lone surrogate.

    With `integers`, refuse whole numbers beyond 2**53, too: a reader that uses floats would change them.
    Lists and dictionaries pass, because `_check_nested` checks their items.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise Refused(f"{field} contains a NUL character; remove it", field=field)
        if not value.isascii():
            _encode_utf8(field, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(
                f"{field} contains {value}, which JSON cannot encode; send a finite number or null",
                field=field,
            )
    elif isinstance(value, int) and integers and abs(value) > SAFE_INTEGER:
        raise Refused(f"{field} contains an integer beyond 2**53; send it as text", field=field)


def _check_nested(field: str, value: Any, depth: int, *, integers: bool) -> None:
    """Check a list or dictionary level by level.

    A storage can be opened with any limit for `depth`. A recursive check would exceed Python's recursion
    limit before it reached a large `depth`.
    """
    level, levels_left = [value], depth
    while level:
        if levels_left == 0:
            raise Refused(f"{field} is nested deeper than {depth}; flatten it", field=field)
        items = list(chain.from_iterable(map(_keys_and_items, level)))
        level, levels_left = (
            [item for item in items if isinstance(item, dict | list | tuple)],
            levels_left - 1,
        )
        for item in items:
            check_json_scalar(field, item, integers=integers)


def _keys_and_items(value: Any) -> Iterable[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else value
