"""Pages of a queue's log, from what events.lua answers."""

from __future__ import annotations

from struct import Struct as Layout
from typing import Any, Final

from dibs.model.events import EventKind, LogEvent
from dibs.model.results import EventPage
from dibs.storage.offsets import LAST, offset, parsed
from dibs.storage.protocol import LATEST
from dibs.storage.redis.codec import jobs as codec
from dibs.storage.redis.codec.requests import Word

#: As include/log.lua numbers them, from 1.
KINDS: Final[tuple[EventKind, ...]] = (
    "completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released", "queued", "updated",
    "blocked", "promoted", "claimed", "handed_off", "cancel_requested", "amended", "forgotten", "paused",
    "resumed", "configured",
)  # fmt: skip
#: Up to here they are ends of attempts.
ATTEMPTS: Final = 7
_ENTRY: Final = Layout(">QI")
_EVENT: Final = Layout(">BBH")


def page_words(after: str | None, limit: int) -> list[Word]:
    """Return what to ask for a page. Raises Refused for what is no offset."""
    if not after:
        return ["", limit]
    if after == LATEST:
        return [LATEST, 0]
    number, place = parsed(after)
    if place == LAST:
        return [str(number + 1), limit]
    # The entry it points into is read again, for what follows in it.
    return [str(number), limit + place + 1]


def page(reply: list[Any], after: str | None, limit: int) -> EventPage:
    """Return the events behind an offset."""
    trimmed, last = int(reply[0]), number_of(reply[1])
    newest = last or trimmed
    end = offset(newest, LAST) if newest else ""
    if after == LATEST or (after and parsed(after) >= parsed(end)):
        return EventPage(events=(), offset=end)
    number, place = parsed(after)
    events: list[tuple[str, LogEvent]] = []
    for entry, raw in zip(reply[2::2], reply[3::2], strict=True):
        at = number_of(entry)
        events += _told(at, events_in(raw), place + 1 if at == number else 0)[: limit - len(events)]
    return EventPage(
        events=tuple(events),
        offset=events[-1][0] if events else end,
        fell_off=after is not None and (number, place) < (trimmed, LAST) and trimmed > 0,
    )


def number_of(entry: bytes) -> int:
    """Return the number of an entry's id; 0 for none."""
    return int(entry.partition(b"-")[0] or 0)


def _told(number: int, events: list[LogEvent], skip: int) -> list[tuple[str, LogEvent]]:
    last = len(events) - 1
    return [(offset(number, LAST if i == last else i), event) for i, event in enumerate(events) if i >= skip]


def events_in(raw: bytes) -> list[LogEvent]:
    """Return the events of one entry."""
    now, count = _ENTRY.unpack_from(raw)
    at, events = _ENTRY.size, []
    for _ in range(count):
        kind, has, size = _EVENT.unpack_from(raw, at)
        start = at + _EVENT.size
        at = start + size
        told = codec.Head(raw, at) if has & 1 else None
        at = told.end if told else at
        error = None
        if has & 2:
            part, at = codec.section(raw, at)
            error = codec.decode_error(part)
        events.append(_event(kind, raw[start : start + size].decode(), now, told, error))
    return events


def _event(kind: int, id: str, now: int, told: codec.Head | None, error: Any) -> LogEvent:
    if told is None:
        return LogEvent(kind=KINDS[kind - 1], id=id, at=now)
    return LogEvent(
        kind=KINDS[kind - 1],
        id=id,
        at=now,
        attempt=told.attempts if told.fence else 0,
        fence=told.fence,
        enqueued_at=told.enqueued_at,
        run_at=told.run_at,
        claimed_at=told.claimed_at,
        finished_at=now if kind <= ATTEMPTS else None,
        holder=told.holder,
        first=told.first,
        revision=told.revision,
        enqueues=told.enqueues,
        error=error,
    )
