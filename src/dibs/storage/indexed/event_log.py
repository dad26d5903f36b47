"""The event log of one queue, which old events leave by age and by size.

Each step of a queue appends one entry. An entry has the events of the step, packed as msgpack.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
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

#: Entries that are compressed together.
PACKED: Final = 512


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """The events of one step. Each `number` is above that of every earlier entry."""

    number: int
    #: The time of the step, in ms since the epoch.
    at: int
    #: The number of events.
    count: int
    #: The events as msgpack.
    packed: bytes


_decode_entries: Final = msgspec.msgpack.Decoder(list[Entry]).decode


def pack_entry(number: int, at: int, events: list[LogEvent]) -> Entry:
    return Entry(number, at, len(events), _encode(events))


class PackedEntries(Struct, frozen=True, gc=False):
    """PACKED entries in sequence, compressed: they take a tenth of the memory."""

    #: The number of the last entry.
    last: int
    data: bytes

    def entries(self) -> list[Entry]:
        return _decode_entries(zlib.decompress(self.data))


class EventLog:
    """The entries of the log, oldest first, and their size. Iteration yields the entries.

    Each process of a file storage has the log in memory, so all but the newest entries are compressed.
    """

    def __init__(self) -> None:
        #: The oldest entries, which are about to be trimmed; then compressed ones; then the newest.
        self._oldest: list[Entry] = []
        self._packed: deque[PackedEntries] = deque()
        self._newest: list[Entry] = []
        #: The size of all entries, in bytes, before compression.
        self.size = 0
        #: The number of the last trimmed entry; 0 before the first trim.
        self.trimmed = 0

    def __iter__(self) -> Iterator[Entry]:
        return self._entries_from(0)

    def _entries_from(self, number: int) -> Iterator[Entry]:
        """Yield the entries from a number on. Unpack only those that are read."""
        parts: list[list[Entry] | PackedEntries] = [self._oldest, *self._packed, self._newest]
        for packed in parts:
            if isinstance(packed, PackedEntries):
                part = packed.entries() if packed.last >= number else []
            else:
                part = packed
            start = bisect_right(part, number - 1, key=lambda entry: entry.number)
            yield from islice(part, start, None)

    def append(self, entry: Entry) -> None:
        newest = self._newest
        newest.append(entry)
        self.size += len(entry.packed)
        if len(newest) == 2 * PACKED:
            data = zlib.compress(_encode(newest[:PACKED]), 1)
            self._packed.append(PackedEntries(newest[PACKED - 1].number, data))
            del newest[:PACKED]

    def drop_last(self, count: int) -> None:
        """Remove the last `count` entries, to undo the step that appended them."""
        for _ in range(count):
            if not self._newest:
                self._newest, self._oldest = (
                    (self._packed.pop().entries(), self._oldest) if self._packed else (self._oldest, [])
                )
            self.size -= len(self._newest.pop().packed)

    def excess(self, oldest_at: int, max_bytes: int) -> list[Entry]:
        """Return the oldest entries that are older than `oldest_at` (ms) or exceed `max_bytes`."""
        size, found = self.size, []
        for entry in self:
            if entry.at >= oldest_at and size <= max_bytes:
                break
            size -= len(entry.packed)
            found.append(entry)
        return found

    def trim(self, through: int) -> list[Entry]:
        """Remove and return the entries up to and including the number `through`."""
        removed: list[Entry] = []
        while True:
            if not self._oldest and self._packed:
                self._oldest = self._packed.popleft().entries()
            part = self._oldest or self._newest
            count = bisect_right(part, through, key=lambda entry: entry.number)
            removed += part[:count]
            del part[:count]
            if part or not (self._packed or self._newest):
                break
        self.size -= sum(len(entry.packed) for entry in removed)
        self.trimmed = max(self.trimmed, through)
        return removed

    def restore(self, removed: list[Entry], trimmed: int) -> None:
        """Undo a trim: put back the entries `removed`, and the value that `trimmed` had before."""
        self._oldest[:0] = removed
        self.size += sum(len(entry.packed) for entry in removed)
        self.trimmed = trimmed

    @property
    def end(self) -> str:
        """The offset of the last event, also if that event was trimmed; "" if the log never had an event."""
        if self._newest:
            return format_offset(self._newest[-1].number, LAST_EVENT)
        if self._packed or self._oldest:
            last = self._packed[-1].last if self._packed else self._oldest[-1].number
            return format_offset(last, LAST_EVENT)
        return format_offset(self.trimmed, LAST_EVENT) if self.trimmed else ""

    def page(self, after: str | None, limit: int) -> EventPage:
        """Return up to `limit` events after an offset. None is the start of the log, LATEST its end.

        The page has `fell_off` if events after the offset were trimmed before they were read.
        """
        if after == LATEST or (after and parse_offset(after) >= parse_offset(self.end)):
            return EventPage(events=(), offset=self.end)
        number, position = parse_offset(after)
        events: list[tuple[str, LogEvent]] = []
        for entry in self._entries_from(number):
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
