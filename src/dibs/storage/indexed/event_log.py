"""The event log of one queue, which old events leave by age and by size.

Each step of a queue appends one entry. An entry has the events of the step, packed as msgpack.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from dibs.model.events import LogEvent
from dibs.model.plain_values import to_plain
from dibs.model.results import EventPage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs.storage.protocol import LATEST

_encode: Final = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
_decode: Final = msgspec.msgpack.Decoder(list[LogEvent]).decode


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """The events of one step. Each `number` is above that of every earlier entry."""

    number: int
    #: The time of the step, in ms since the epoch.
    at: int
    #: The number of events.
    count: int
    #: The events as msgpack.
    packed: bytes


def pack_entry(number: int, at: int, events: list[LogEvent]) -> Entry:
    return Entry(number, at, len(events), _encode(events))


class EventLog:
    """The entries of the log, oldest first, and their size."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: The size of all entries, in bytes.
        self.size = 0
        #: The number of the last trimmed entry; 0 before the first trim.
        self.trimmed = 0

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.size += len(entry.packed)

    def drop_last(self, count: int) -> None:
        """Remove the last `count` entries, to undo the step that appended them."""
        for entry in self.entries[len(self.entries) - count :]:
            self.size -= len(entry.packed)
        del self.entries[len(self.entries) - count :]

    def excess(self, oldest_at: int, max_bytes: int) -> int:
        """Return the number of oldest entries that are older than `oldest_at` (ms) or exceed `max_bytes`."""
        size, count = self.size, 0
        for entry in self.entries:
            if entry.at >= oldest_at and size <= max_bytes:
                break
            size -= len(entry.packed)
            count += 1
        return count

    def trim(self, through: int) -> list[Entry]:
        """Remove and return the entries up to and including the number `through`."""
        count = bisect_right(self.entries, through, key=lambda entry: entry.number)
        removed = self.entries[:count]
        del self.entries[:count]
        self.size -= sum(len(entry.packed) for entry in removed)
        self.trimmed = max(self.trimmed, through)
        return removed

    def restore(self, removed: list[Entry], trimmed: int) -> None:
        """Undo a trim: put back the entries `removed`, and the value that `trimmed` had before."""
        self.entries[:0] = removed
        self.size += sum(len(entry.packed) for entry in removed)
        self.trimmed = trimmed

    @property
    def end(self) -> str:
        """The offset of the last event, also if that event was trimmed; "" if the log never had an event."""
        if self.entries:
            return format_offset(self.entries[-1].number, LAST_EVENT)
        return format_offset(self.trimmed, LAST_EVENT) if self.trimmed else ""

    def page(self, after: str | None, limit: int) -> EventPage:
        """Return up to `limit` events after an offset. None is the start of the log, LATEST its end.

        The page has `fell_off` if events after the offset were trimmed before they were read.
        """
        if after == LATEST or (after and parse_offset(after) >= parse_offset(self.end)):
            return EventPage(events=(), offset=self.end)
        number, position = parse_offset(after)
        events: list[tuple[str, LogEvent]] = []
        start = bisect_right(self.entries, number - 1, key=lambda entry: entry.number)
        for entry in islice(self.entries, start, None):
            events += _events_with_offsets(
                entry, position + 1 if entry.number == number else 0, limit - len(events)
            )
            if len(events) == limit:
                break
        fell_off = after is not None and (number, position) < (self.trimmed, LAST_EVENT) and self.trimmed > 0
        return EventPage(
            events=tuple(events), offset=events[-1][0] if events else self.end, fell_off=fell_off
        )


def _events_with_offsets(entry: Entry, skip: int, limit: int) -> list[tuple[str, LogEvent]]:
    """Return up to `limit` events of an entry with their offsets, without the first `skip` events."""
    if skip >= entry.count:
        return []
    last = entry.count - 1
    positions = range(skip, min(skip + limit, entry.count))
    events = _decode(entry.packed)
    return [(format_offset(entry.number, LAST_EVENT if i == last else i), events[i]) for i in positions]
