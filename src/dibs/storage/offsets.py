"""The offsets of events in a log of numbered entries: an entry number and the index of an event in it."""

from __future__ import annotations

import re
from typing import Final

from dibs.errors import Refused

#: The index of the last event of an entry, so that a trimmed entry needs no count of its events.
LAST_EVENT: Final = 0xFFFFFF
_OFFSET: Final = re.compile("[0-9a-f]{16}[.][0-9a-f]{6}")


def format_offset(number: int, index: int) -> str:
    """Return the offset of an event: hexadecimal of fixed width, which sorts in the order of the log."""
    return f"{number:016x}.{index:06x}"


def parse_offset(after: str | None) -> tuple[int, int]:
    """Return the entry number and the event index of an offset, (0, -1) for None.

    Raise Refused for text that is not an offset.
    """
    if not after:
        return 0, -1
    if not _OFFSET.fullmatch(after):
        raise Refused(
            f"after is {after!r:.80}, which is not an offset of a log; pass the offset of a page",
            field="after",
        )
    number, _, index = after.partition(".")
    return int(number, 16), int(index, 16)
