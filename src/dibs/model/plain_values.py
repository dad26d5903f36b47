"""Conversion of numpy scalars and of subclasses of str, bytes, int and float, which msgspec does not encode.

Such values come from other libraries: texts of a template engine, numbers of numpy, members of an Enum.
"""

from __future__ import annotations

import sys
from typing import Any


def to_plain(value: Any) -> Any:
    """Return the str, bytes, int or float of a subclass or of a numpy scalar.

    A `__str__` of the subclass has no effect. The function is an `enc_hook` of msgspec. Raises TypeError for
    any other type.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return b"".join((value,))
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        for kind, plain in ((numpy.bool_, bool), (numpy.integer, int), (numpy.floating, float)):
            if isinstance(value, kind):
                return plain(value)
    raise TypeError(f"a value of type {type(value).__qualname__} is not supported; pass plain data instead")


def to_plain_text(value: Any) -> Any:
    """Return a str subclass as a plain str, and any other value unchanged, for the checks that follow."""
    return value if type(value) is str or not isinstance(value, str) else str.__str__(value)
