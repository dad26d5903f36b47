"""The offsets of events in the log of a queue, as text.

A log is a list of numbered entries, and each entry holds the events of one step. An offset is the number of
an entry and the index of an event in it, as in `0006412e5a3b7c10.000002`.
"""

from __future__ import annotations

import re
from typing import Final

from dibs.errors import Refused

#: The index that marks the last event of any entry. With it, the offset of the last event of a trimmed entry
#: is known without the number of its events.
LAST_EVENT: Final = 0xFFFFFF
_OFFSET: Final = re.compile("[0-9a-f]{16}[.][0-9a-f]{6}")


def format_offset(number: int, index: int) -> str:
    """Return the offset of an event as hexadecimal text of fixed width, so offsets sort in log order."""
    return f"{number:016x}.{index:06x}"


def parse_offset(after: str | None) -> tuple[int, int]:
    """Return the entry number and the event index of the offset `after`.

    None is the start of the log: (0, -1), before the first event. Raise Refused for any other value.
    """
    if after is None or after == "":
        return 0, -1
    if not isinstance(after, str) or not _OFFSET.fullmatch(after):
        raise Refused(
            f"after is {after!r:.80}, which is not an offset of a log; pass the `offset` of an EventPage",
            field="after",
        )
    number, _, index = after.partition(".")
    return int(number, 16), int(index, 16)


def offset_before(time: int, newest: str) -> str | None:
    """Return an offset before all events since a time (ms) in the log whose newest offset is `newest`.

    None if the offsets of this log have another form. A number is drawn from a clock that may be ahead, and
    never behind: the offset may be too early, and is never too late.
    """
    return format_offset(time * 1000, 0) if _OFFSET.fullmatch(newest) else None


def number_time(offset: str) -> int:
    """Return the number in an offset as a time, in ms: that of its entry, or later."""
    return parse_offset(offset)[0] // 1000
