"""Offsets of a log that is numbered by its entries: which entry, and which event of those packed in it."""

from __future__ import annotations

import re
from typing import Final

from dibs.errors import Refused

#: Stands for the last event of an entry, however many it has: what is trimmed need not be counted then.
LAST: Final = 0xFFFFFF
_OFFSET: Final = re.compile("[0-9a-f]{16}[.][0-9a-f]{6}")


def offset(number: int, place: int) -> str:
    """Return the offset of an event: hexadecimal of fixed width, so that text sorts as the log does."""
    return f"{number:016x}.{place:06x}"


def parsed(after: str | None) -> tuple[int, int]:
    """Return entry and place of an offset, (0, -1) for none. Raises Refused for what was never handed out."""
    if not after:
        return 0, -1
    if not _OFFSET.fullmatch(after):
        raise Refused(
            f"after is {after!r:.80}, which is no offset of this log: take one it gave", field="after"
        )
    number, _, place = after.partition(".")
    return int(number, 16), int(place, 16)
