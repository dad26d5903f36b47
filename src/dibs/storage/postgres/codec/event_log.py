"""Decoding of pages of a queue's event log, from the rows of read_events(), and of output.

The server stores entries of one or more events. The offset of an event is the number of its entry and its
index in the entry, both in hexadecimal of fixed width, so that offsets sort as text in the order of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs.storage.postgres.codec.rows import DECODE_ERRORS, UnreadableRow
from dibs.storage.protocol import LATEST

Row = Sequence[Any]


class _Completions(msgspec.Struct, frozen=True, gc=False):
    """A log entry of complete_all() in functions/settle.sql: the completed runs of one step."""

    at: int
    #: The holder of the runs with five fields.
    holder: str
    events: list[msgspec.Raw] = []
    #: The fields from here on are those of complete_runs() in functions/settle.sql, instead of `events`.
    fence: int = 0
    revision: int = 0
    ids: list[str] = []
    #: Fences and revisions relative to the two numbers above.
    fences: list[int] = []
    revisions: list[int] = []
    #: Milliseconds from the enqueue, and from the claim, to the end.
    waits: list[int] = []
    runs: list[int] = []


_decode_entry: Final = msgspec.json.Decoder(list[LogEvent]).decode
_decode_completions: Final = msgspec.json.Decoder(_Completions).decode
_decode_event: Final = msgspec.json.Decoder(LogEvent).decode
#: Id, fence, enqueued_at, claimed_at and revision of a completed run whose other fields are as usual.
_decode_run: Final = msgspec.json.Decoder(tuple[str, int, int, int, int]).decode
#: The start of an event with all fields. In one with five fields, a number follows the id.
_ALL_FIELDS: Final = b'["completed","'
#: The largest bigint. It replaces a larger number in an offset, and is also after the end of the log.
_BEYOND: Final = 2**63 - 1


def first_entry_number(after: str | None) -> int | None:
    """Return the number of the first entry to read, for the parameter `since`; None for the last entry."""
    return None if after == LATEST else min(parse_offset(after)[0], _BEYOND)


def decode_page(rows: Sequence[Row], after: str | None, limit: int) -> EventPage:
    """Return up to `limit` events after an offset. Skip the events of the first entry up to that offset."""
    trimmed = rows[0][0] or 0
    if after == LATEST:
        return EventPage(events=(), offset=_end_offset(rows[0], trimmed))
    last_number, last_index = parse_offset(after)
    events: list[tuple[str, LogEvent]] = []
    for _, number, _, packed in rows:
        if number is None or len(events) >= limit:
            break
        begin = last_index + 1 if number == last_number else 0
        try:
            entry = _unpack(packed)[begin:]
        except DECODE_ERRORS:
            raise UnreadableRow(f"log entry '{number}'") from None
        events += [(format_offset(number, index), event) for index, event in enumerate(entry, begin)]
    del events[limit:]
    # "" is the offset of an empty log. Its reader may have missed events that were added and trimmed since.
    fell_off = after is not None and last_number < trimmed
    here = format_offset(trimmed, LAST_EVENT) if fell_off else after or ""
    return EventPage(events=tuple(events), offset=events[-1][0] if events else here, fell_off=fell_off)


def decode_output(rows: Sequence[Row], id: str, after: str | None, limit: int) -> EventPage:
    """Return up to `limit` chunks after an offset, from the rows of read_output()."""
    if after == LATEST:
        ends = (format_offset(number, removed + len(row[-1]) - 1) for number, removed, *row in rows)
        return EventPage(events=(), offset=next(ends, ""))
    position = parse_offset(after)
    events: list[tuple[str, LogEvent]] = []
    for n, removed, at, attempt, fence, first, revision, holder, chunks in rows[1:]:
        event = LogEvent(
            kind="output", id=id, at=at, attempt=attempt, fence=fence, holder=holder, first=first,
            revision=revision,
        )  # fmt: skip
        events += [
            (format_offset(n, index), replace(event, result=chunk))
            for index, chunk in enumerate(chunks, removed)
            if (n, index) > position
        ]
    del events[limit:]
    cut = (rows[0][0], rows[0][1] - 1) if rows and rows[0][1] else position
    return EventPage(
        events=tuple(events),
        offset=events[-1][0] if events else after or "",
        fell_off=after is not None and position < cut,
    )


def _end_offset(last: Row, trimmed: int) -> str:
    if last[1] is not None:
        return format_offset(last[1], last[2] - 1)
    return format_offset(trimmed, LAST_EVENT) if trimmed else ""


def _unpack(packed: str) -> Sequence[LogEvent]:
    """Return the events of a log entry: a list of events, or the completed runs of one step."""
    if packed.startswith("["):
        return _decode_entry(packed)
    entry = _decode_completions(packed)
    if entry.ids:
        return _decode_plain(entry)
    return [_decode_completion(event, entry) for event in entry.events]


def _decode_plain(entry: _Completions) -> Sequence[LogEvent]:
    """Return the events of an entry that has an array for each field."""
    columns = zip(entry.ids, entry.fences, entry.revisions, entry.waits, entry.runs, strict=True)
    return [
        _completed(entry, id, entry.fence + fence, entry.at - wait, entry.at - run, entry.revision + revision)
        for id, fence, revision, wait, run in columns
    ]


def _decode_completion(event: msgspec.Raw, entry: _Completions) -> LogEvent:
    if bytes(event).startswith(_ALL_FIELDS):
        return _decode_event(event)
    return _completed(entry, *_decode_run(event))


def _completed(
    entry: _Completions, id: str, fence: int, enqueued_at: int, claimed_at: int, revision: int
) -> LogEvent:
    """Return the event of a first run whose job was never updated, delayed or returned."""
    return LogEvent(
        kind="completed",
        id=id,
        at=entry.at,
        attempt=1,
        fence=fence,
        enqueued_at=enqueued_at,
        run_at=enqueued_at,
        claimed_at=claimed_at,
        finished_at=entry.at,
        holder=entry.holder,
        first=revision,
        revision=revision,
        enqueues=1,
    )
