"""Verbs that change nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dibs.errors import Refused
from dibs.model import rules
from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import Counts, EventPage, ExportPage, ExportRecord, ListPage, QueueInfo, State
from dibs.storage.protocol import LATEST
from dibs_sqlite.step import Queue, Step

_OFFSET: Final = re.compile("[0-9a-f]{16}")
_event: Final = msgspec.msgpack.Decoder(LogEvent).decode
_settings: Final = msgspec.msgpack.Decoder(Settings).decode


def get(step: Step, name: str, ids: Sequence[str]) -> list[Slot]:
    """Return slots as everybody may see them."""
    queue = step.queue(name)
    return [rules.visible(queue.get(id), step.now) for id in ids]


def list_(step: Step, name: str, state: State, after: str | None, until: str | None, limit: int) -> ListPage:
    """Return a page of the ids in a state; the cursor is the last id of the page."""
    items, cursor = _page(step, step.queue(name), state, after, until, limit)
    return ListPage(items=tuple(items), after=cursor)


def split(step: Step, name: str, parts: int, state: State | None) -> list[str]:
    """Return the cursors at which a listing, or an export, falls into equal parts."""
    return step.queue(name).split(state, parts)


def export(step: Step, name: str, after: str | None, until: str | None, limit: int) -> ExportPage:
    """Return a page of whole ids."""
    queue = step.queue(name)
    items, cursor = _page(step, queue, None, after, until, limit)
    records = tuple(ExportRecord(id=id, slot=slot) for id, slot in items)
    return ExportPage(records=records, settings=queue.settings, after=cursor)


def _page(
    step: Step, queue: Queue, state: State | None, after: str | None, until: str | None, limit: int
) -> tuple[list[tuple[str, Slot]], str | None]:
    found = list(queue.listed(state, after or "", until, limit + 1))
    items = [(id, rules.visible(slot, step.now)) for id, slot in found[:limit]]
    return items, items[-1][0] if len(found) > limit else None


def counts(step: Step, names: Sequence[str]) -> dict[str, Counts]:
    """Count ids by state."""
    return {name: _counts(step, step.queue(name)) for name in names}


def _counts(step: Step, queue: Queue) -> Counts:
    cursor = queue.query("counts", now=step.now)
    names = [column[0] for column in cursor.description]
    return Counts(**dict(zip(names, cursor.fetchone(), strict=True)))


def queues(step: Step) -> list[QueueInfo]:
    """Return the known queues by name."""
    return [QueueInfo(name, _settings(packed)) for name, packed in step.query("queues")]


def events(step: Step, name: str, after: str | None, limit: int) -> EventPage:
    """Return what the log has after an offset: the number of an event, as hexadecimal of fixed width."""
    queue = step.queue(name)
    if after == LATEST:
        return EventPage(events=(), offset=end_of_log(queue))
    number = _number(after)
    rows = queue.query("page", after=number, limit=limit).fetchall()
    told = tuple((_offset(at), _event(body)) for at, body in rows)
    fell_off = after is not None and number < queue.trimmed
    return EventPage(events=told, offset=told[-1][0] if told else end_of_log(queue), fell_off=fell_off)


def end_of_log(queue: Queue) -> str:
    """Return the offset of the last event that was ever told; "" before the first."""
    last = queue.one("last_event") or queue.trimmed
    return _offset(last) if last else ""


def _offset(number: int) -> str:
    return f"{number:016x}"


def _number(after: str | None) -> int:
    """Return the number of an offset. Raises Refused for what was never handed out."""
    if not after:
        return 0
    if not _OFFSET.fullmatch(after):
        raise Refused(
            f"after is {after!r:.80}, which is no offset of this log: take one it gave", field="after"
        )
    return min(int(after, 16), 2**62)
