"""Fields of jobs made fit for a language model: long values are shortened, and private ones are hidden."""

from __future__ import annotations

from typing import Any, Final

import msgspec

#: The most bytes of one value, encoded as JSON. A payload may have 1 MiB, more than a conversation can hold.
LONGEST_VALUE: Final = 4_000
#: The characters that are left of a longer value.
BEGIN: Final = 1_000
#: Fields whose values programs and users choose.
VALUE_FIELDS: Final = ("payload", "result", "progress", "attributes")
#: Fields that may contain parts of such values.
TEXT_FIELDS: Final = ("message", "traceback")
HIDDEN: Final = "hidden by --hide-values"


def prepare(fields: Any, *, hide: bool) -> Any:
    """Return the JSON fields of a job, an event or a list of them, with values shortened or hidden."""
    if isinstance(fields, list):
        return [prepare(item, hide=hide) for item in fields]
    if not isinstance(fields, dict):
        return fields
    return {name: _prepare_field(name, value, hide=hide) for name, value in fields.items()}


def _prepare_field(name: str, value: Any, *, hide: bool) -> Any:
    if name not in (*VALUE_FIELDS, *TEXT_FIELDS) or not value:
        return prepare(value, hide=hide)
    return HIDDEN if hide else _shorten(value)


def _shorten(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text.encode()) <= LONGEST_VALUE:
        return value
    return {"begin": text[:BEGIN], "bytes": len(text.encode()), "shortened": True}
