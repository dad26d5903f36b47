"""The text of a job's key, to which the limits `per_key` and `key_rate` of its queue apply."""

from __future__ import annotations

from typing import Any, Final

from dibs.errors import Refused
from dibs.model.check_values import check_text
from dibs.model.limits import LIMITS
from dibs.model.plain_values import to_plain_text

#: Bits of a number with about 300 digits. Python raises ValueError when it prints one of thousands of digits.
_MOST_BITS: Final = 1000


def build_key(value: Any) -> str | None:
    """Return a key as text: text unchanged, a whole number in decimal digits, None for no key.

    Raises Refused with the field `key` for another type, and unless the text has 1 to 128 bytes.
    """
    if value is None:
        return None
    text = to_plain_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        text = str(int(value)) if value.bit_length() <= _MOST_BITS else "9" * _MOST_BITS
    if not isinstance(text, str):
        raise Refused(
            f"key is {value!r:.60} of type {type(value).__name__}; pass a text of 1 to 128 bytes, a whole "
            "number, or None for no key",
            field="key",
        )
    check_text("key", text, LIMITS.key)
    return text
