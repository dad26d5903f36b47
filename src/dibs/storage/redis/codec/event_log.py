"""Decoding of a queue's event log, from the replies of storage/redis/lua/events.lua.

The log is a Redis stream. Each entry of the stream has the events of one step.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Any, Final

from dibs.model.events import EventKind, LogEvent
from dibs.model.results import EventPage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs.storage.protocol import LATEST
from dibs.storage.redis.codec import jobs
from dibs.storage.redis.codec.data import read_sized
from dibs.storage.redis.codec.requests import Argument

#: The kinds of events, in the order of EVENT_KINDS in storage/redis/lua/include/event_log.lua. An entry has
#: the number of a kind, counted from 1.
KINDS: Final[tuple[EventKind, ...]] = (
    "completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released", "queued", "updated",
    "blocked", "promoted", "claimed", "handed_off", "cancel_requested", "amended", "forgotten", "paused",
    "resumed", "configured",
)  # fmt: skip
#: The first seven of KINDS are ends of attempts; their events have `finished_at`.
ATTEMPT_KINDS: Final = 7
_ENTRY: Final = Layout(">QI")
_EVENT: Final = Layout(">BBH")
#: Added to the kind of a group of events: events of the same kind of the jobs of one claim.
_GROUP: Final = 128
_GROUP_RUN: Final = Layout(">QQh")
#: Flag of a group whose events have an enqueued_at beside their run_at.
_HAS_TIME: Final = 8
#: Bytes of each event of a group, without and with enqueued_at: 7 of its seq, and 8 of each time.
_GROUP_STEP, _TIMED_GROUP_STEP = 15, 23


def encode_page_request(after: str | None, limit: int) -> list[Argument]:
    """Return the arguments of events.lua for a page. Raise Refused if `after` is not an offset."""
    if not after:
        return ["", limit]
    if after == LATEST:
        return [LATEST, 0]
    number, index = parse_offset(after)
    if index == LAST_EVENT:
        return [str(number + 1), limit]
    # The offset is inside an entry: read the entry again for its later events.
    return [str(number), limit + index + 1]


def decode_page(reply: list[Any], after: str | None, limit: int) -> EventPage:
    """Return the page in a reply of events.lua, without the events up to the offset `after`."""
    trimmed, last = int(reply[0]), entry_number(reply[1])
    newest = last or trimmed
    end = format_offset(newest, LAST_EVENT) if newest else ""
    if after == LATEST or (after and parse_offset(after) >= parse_offset(end)):
        return EventPage(events=(), offset=end)
    number, index = parse_offset(after)
    events: list[tuple[str, LogEvent]] = []
    for entry, raw in zip(reply[2::2], reply[3::2], strict=True):
        if len(events) >= limit:
            # The reply has `limit` entries, and an entry may have a thousand events.
            break
        at = entry_number(entry)
        try:
            found = decode_events(raw)
        except jobs.DECODE_ERRORS:
            raise jobs.UnreadableRecord("event", entry.decode()) from None
        events += _with_offsets(at, found, index + 1 if at == number else 0)[: limit - len(events)]
    return EventPage(
        events=tuple(events),
        offset=events[-1][0] if events else end,
        fell_off=after is not None and (number, index) < (trimmed, LAST_EVENT) and trimmed > 0,
    )


#: Time, attempt, fence, first and revision of a chunk, before its holder.
_CHUNK: Final = Layout(">QIQQQ")


def encode_output_request(after: str | None) -> str:
    """Return the first chunk that output.lua is to return. Raise Refused if `after` is not an offset."""
    if after == LATEST:
        return LATEST
    number, index = parse_offset(after)
    return f"{number}-{index + 1}"


def decode_output(reply: list[Any], id: str, after: str | None) -> EventPage:
    """Return the page of chunks in a reply of output.lua."""
    if after == LATEST:
        return EventPage(events=(), offset=_chunk_offset(reply[0]) if reply[0] else "")
    events = tuple((_chunk_offset(entry), _decode_chunk(id, entry, parts)) for entry, parts in reply[2:])
    return EventPage(
        events=events,
        offset=events[-1][0] if events else after or "",
        fell_off=after is not None and bool(reply[1]) and after < _chunk_offset(reply[1]),
    )


def _chunk_offset(entry: bytes) -> str:
    number, _, index = entry.partition(b"-")
    return format_offset(int(number), int(index))


def _decode_chunk(id: str, entry: bytes, parts: list[bytes]) -> LogEvent:
    """Unpack a chunk. storage/redis/lua/include/output.lua documents the layout."""
    try:
        _, header, _, chunk = parts
        at, attempt, fence, first, revision = _CHUNK.unpack_from(header)
        holder, _ = read_sized(header, _CHUNK.size)
        text = holder.decode()
    except jobs.DECODE_ERRORS:
        raise jobs.UnreadableRecord("output", entry.decode()) from None
    return LogEvent(
        kind="output", id=id, at=at, attempt=attempt, fence=fence, holder=text, first=first,
        revision=revision, result=chunk,
    )  # fmt: skip


def entry_number(entry: bytes) -> int:
    """Return the number in the id of a stream entry: 42 for b"42-0", and 0 for b"" (no entry)."""
    return int(entry.partition(b"-")[0] or 0)


def _with_offsets(number: int, events: list[LogEvent], skip: int) -> list[tuple[str, LogEvent]]:
    last = len(events) - 1
    return [
        (format_offset(number, LAST_EVENT if i == last else i), event)
        for i, event in enumerate(events)
        if i >= skip
    ]


def decode_events(raw: bytes) -> list[LogEvent]:
    """Unpack the events of one entry. storage/redis/lua/include/event_log.lua documents the layout."""
    now, count = _ENTRY.unpack_from(raw)
    at, events = _ENTRY.size, list[LogEvent]()
    while len(events) < count:
        kind, has, size = _EVENT.unpack_from(raw, at)
        start = at + _EVENT.size
        if kind >= _GROUP:
            step = _TIMED_GROUP_STEP if has & _HAS_TIME else _GROUP_STEP
            grouped, at = _decode_group(raw, start, KINDS[kind - _GROUP - 1], size, now, step)
            events += grouped
            continue
        at = start + size
        head = jobs.Head(raw, at) if has & 1 else None
        at = head.end if head else at
        error = None
        if has & 2:
            part, at = read_sized(raw, at)
            error = jobs.decode_error(part)
        result = None
        if has & 4:
            result, at = read_sized(raw, at)
        events.append(_decode_event(kind, raw[start : start + size].decode(), now, head, error, result))
    return events


def _decode_group(
    raw: bytes, at: int, kind: EventKind, count: int, now: int, step: int
) -> tuple[list[LogEvent], int]:
    """Return the events of a group and the position behind it. Each event takes `step` bytes."""
    joined, at = read_sized(raw, at)
    fence, claimed_at, _ = _GROUP_RUN.unpack_from(raw, at)
    holder, at = read_sized(raw, at + _GROUP_RUN.size)
    end = at + count * step
    events = []
    for id, start in zip(joined.decode().split("\0"), range(at, end, step), strict=True):
        seq, run_at = int.from_bytes(raw[start : start + 7]), int.from_bytes(raw[start + 7 : start + 15])
        enqueued_at = int.from_bytes(raw[start + step - 8 : start + step])
        events.append(
            LogEvent(
                kind=kind, id=id, at=now, attempt=1, fence=fence, enqueued_at=enqueued_at, run_at=run_at,
                claimed_at=claimed_at, finished_at=now, holder=holder.decode(), first=seq, revision=seq,
                enqueues=1,
            )
        )  # fmt: skip
    if end > len(raw):
        raise ValueError("the group of events is cut")
    return events, end


def _decode_event(
    kind: int, id: str, now: int, head: jobs.Head | None, error: Any, result: bytes | None
) -> LogEvent:
    if head is None:
        return LogEvent(kind=KINDS[kind - 1], id=id, at=now)
    return LogEvent(
        kind=KINDS[kind - 1],
        id=id,
        at=now,
        attempt=head.attempts if head.fence else 0,
        fence=head.fence,
        enqueued_at=head.enqueued_at,
        run_at=head.run_at,
        claimed_at=head.claimed_at,
        finished_at=now if kind <= ATTEMPT_KINDS else None,
        holder=head.holder,
        first=head.first,
        revision=head.revision,
        enqueues=head.enqueues,
        error=error,
        result=result,
    )
