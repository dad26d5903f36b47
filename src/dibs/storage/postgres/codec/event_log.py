"""The log of a queue as pages: entries of the server's unpacked, with an offset for each event.

An offset is the entry's number and the place in it, in hexadecimal of fixed width, so text sorts as the
log does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST

Row = Sequence[Any]

_unpack: Final = msgspec.json.Decoder(list[LogEvent]).decode
_LAST_PLACE: Final = 0xFFFFFF
#: Above every number: an offset that never was one is beyond everything, as "~" is.
_BEYOND: Final = 2**63 - 1


def offset(n: int, place: int) -> str:
    """Return the offset of an event."""
    return f"{n:016x}.{place:06x}"


def parsed(after: str | None) -> tuple[int, int]:
    """Return where an offset points: an entry and the place in it; None is the start."""
    if not after:
        return 0, -1
    try:
        n, place = (int(part, 16) for part in after.split("."))
    except ValueError:
        return _BEYOND, 0
    return min(n, _BEYOND), place


def since(after: str | None) -> int | None:
    """Return the number to read from; None reads the end."""
    return None if after == LATEST else parsed(after)[0]


def page(rows: Sequence[Row], after: str | None, most: int) -> EventPage:
    """Return up to `most` events of some entries, the first of which may have been read in part."""
    trimmed = rows[0][0] or 0
    if after == LATEST:
        return EventPage(events=(), offset=_end(rows[0], trimmed))
    number, place = parsed(after)
    events: list[tuple[str, LogEvent]] = []
    for _, n, _, packed in rows:
        if n is None or len(events) >= most:
            break
        begin = place + 1 if n == number else 0
        told = _unpack(packed)[begin:]
        events += [(offset(n, at), event) for at, event in enumerate(told, begin)]
    del events[most:]
    # "" is the start of an empty log: who was handed it may have missed what came and went.
    fell_off = after is not None and number < trimmed
    here = offset(trimmed, _LAST_PLACE) if fell_off else after or ""
    return EventPage(events=tuple(events), offset=events[-1][0] if events else here, fell_off=fell_off)


def _end(last: Row, trimmed: int) -> str:
    if last[1] is not None:
        return offset(last[1], last[2] - 1)
    return offset(trimmed, _LAST_PLACE) if trimmed else ""
