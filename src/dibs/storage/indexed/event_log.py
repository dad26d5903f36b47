"""The log of one queue: packed entries in order, bounded by age and size."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs.storage.protocol import LATEST

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[LogEvent]).decode


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """What one atomic step told. `number` is drawn like a revision, so entries sort by it."""

    number: int
    at: int
    count: int
    packed: bytes


def pack(number: int, at: int, events: list[LogEvent]) -> Entry:
    """Return the events of one step as an entry."""
    return Entry(number, at, len(events), _encode(events))


class EventLog:
    """Entries oldest first. Trimming moves `trimmed`, the number of the last entry that is gone."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.size = 0
        self.trimmed = 0

    def append(self, entry: Entry) -> None:
        """Put an entry at the end."""
        self.entries.append(entry)
        self.size += len(entry.packed)

    def drop_last(self, count: int) -> None:
        """Take the last entries away again: the step that told them did not happen."""
        for entry in self.entries[len(self.entries) - count :]:
            self.size -= len(entry.packed)
        del self.entries[len(self.entries) - count :]

    def excess(self, oldest_at: int, most_bytes: int) -> int:
        """Return how many of the oldest entries are older than that, or beyond that many bytes."""
        size, count = self.size, 0
        for entry in self.entries:
            if entry.at >= oldest_at and size <= most_bytes:
                break
            size -= len(entry.packed)
            count += 1
        return count

    def trim(self, through: int) -> list[Entry]:
        """Forget the entries up to a number, and return them."""
        count = bisect_right(self.entries, through, key=lambda entry: entry.number)
        gone = self.entries[:count]
        del self.entries[:count]
        self.size -= sum(len(entry.packed) for entry in gone)
        self.trimmed = max(self.trimmed, through)
        return gone

    def restore(self, gone: list[Entry], trimmed: int) -> None:
        """Undo a trim."""
        self.entries[:0] = gone
        self.size += sum(len(entry.packed) for entry in gone)
        self.trimmed = trimmed

    @property
    def end(self) -> str:
        """The offset of the last event that was ever told; "" before the first."""
        if self.entries:
            return format_offset(self.entries[-1].number, LAST_EVENT)
        return format_offset(self.trimmed, LAST_EVENT) if self.trimmed else ""

    def page(self, after: str | None, limit: int) -> EventPage:
        """Return up to `limit` events after an offset; None is the start of what is kept."""
        if after == LATEST or (after and parse_offset(after) >= parse_offset(self.end)):
            return EventPage(events=(), offset=self.end)
        number, place = parse_offset(after)
        events: list[tuple[str, LogEvent]] = []
        start = bisect_right(self.entries, number - 1, key=lambda entry: entry.number)
        for entry in islice(self.entries, start, None):
            events += _told(entry, place + 1 if entry.number == number else 0, limit - len(events))
            if len(events) == limit:
                break
        fell_off = after is not None and (number, place) < (self.trimmed, LAST_EVENT) and self.trimmed > 0
        return EventPage(
            events=tuple(events), offset=events[-1][0] if events else self.end, fell_off=fell_off
        )


def _told(entry: Entry, skip: int, limit: int) -> list[tuple[str, LogEvent]]:
    """Return up to `limit` events of an entry, after the first `skip` of them, each with its offset."""
    if skip >= entry.count:
        return []
    last = entry.count - 1
    places = range(skip, min(skip + limit, entry.count))
    events = _decode(entry.packed)
    return [(format_offset(entry.number, LAST_EVENT if i == last else i), events[i]) for i in places]
