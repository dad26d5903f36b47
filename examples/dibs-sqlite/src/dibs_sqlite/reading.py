"""The methods that only read: get, list, split, export, counts, queues and events."""

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
from dibs.storage.indexed.output import page
from dibs.storage.protocol import LATEST
from dibs_sqlite.transaction import QueueRows, Transaction

_OFFSET: Final = re.compile("[0-9a-f]{16}")
_decode_event: Final = msgspec.msgpack.Decoder(LogEvent).decode
_decode_settings: Final = msgspec.msgpack.Decoder(Settings).decode


def get(tx: Transaction, name: str, ids: Sequence[str]) -> list[Slot]:
    """Return the slot of each id, without an expired outcome that prune has not yet removed."""
    queue = tx.queue(name)
    return [rules.hide_expired_outcome(queue.get(id), tx.now) for id in ids]


def list_(
    tx: Transaction, name: str, state: State, after: str | None, until: str | None, limit: int
) -> ListPage:
    """Return a page of the ids in a state. The cursor is the last id of the page."""
    items, cursor = _read_page(tx, tx.queue(name), state, after, until, limit)
    return ListPage(items=tuple(items), after=cursor)


def split(tx: Transaction, name: str, parts: int, state: State | None) -> list[str]:
    """Return the cursors that divide a listing or an export into equal parts."""
    return tx.queue(name).split(state, parts)


def export(tx: Transaction, name: str, after: str | None, until: str | None, limit: int) -> ExportPage:
    """Return a page of ids, each with job, successor and outcome. The cursor is the last id of the page."""
    queue = tx.queue(name)
    items, cursor = _read_page(tx, queue, None, after, until, limit)
    records = tuple(ExportRecord(id=id, slot=slot) for id, slot in items)
    return ExportPage(records=records, settings=queue.settings, after=cursor)


def _read_page(
    tx: Transaction, queue: QueueRows, state: State | None, after: str | None, until: str | None, limit: int
) -> tuple[list[tuple[str, Slot]], str | None]:
    found = list(queue.listed(state, after or "", until, limit + 1))
    items = [(id, rules.hide_expired_outcome(slot, tx.now)) for id, slot in found[:limit]]
    return items, items[-1][0] if len(found) > limit else None


def counts(tx: Transaction, names: Sequence[str]) -> dict[str, Counts]:
    """Count the jobs of each queue by state."""
    return {name: _count_queue(tx, tx.queue(name)) for name in names}


def _count_queue(tx: Transaction, queue: QueueRows) -> Counts:
    cursor = queue.execute("counts", now=tx.now)
    names = [column[0] for column in cursor.description]
    return Counts(**dict(zip(names, cursor.fetchone(), strict=True)))


def queues(tx: Transaction) -> list[QueueInfo]:
    """Return all queues that were ever written to, sorted by name."""
    return [QueueInfo(name, _decode_settings(packed)) for name, packed in tx.execute("queues")]


def events(tx: Transaction, name: str, after: str | None, limit: int) -> EventPage:
    """Return the events after an offset. An offset is an event's number in 16 hexadecimal digits."""
    queue = tx.queue(name)
    if after == LATEST:
        return EventPage(events=(), offset=end_of_log(queue))
    first = _parse_offset(after)
    rows = queue.execute("events_after", after=first, limit=limit).fetchall()
    found = tuple((_format_offset(number), _decode_event(body)) for number, body in rows)
    fell_off = after is not None and first < queue.trimmed
    return EventPage(events=found, offset=found[-1][0] if found else end_of_log(queue), fell_off=fell_off)


def output(tx: Transaction, name: str, id: str, after: str | None, limit: int) -> EventPage:
    """Return the chunks of output of an id after an offset, without those of an expired outcome."""
    queue = tx.queue(name)
    has_outcome = rules.hide_expired_outcome(queue.get(id), tx.now).outcome is not None
    return page(queue.output(id), after, limit, with_outcome=has_outcome)


def end_of_log(queue: QueueRows) -> str:
    """Return the offset of the last event, even if it was trimmed; "" if the log never had one."""
    last = queue.scalar("last_event") or queue.trimmed
    return _format_offset(last) if last else ""


def _format_offset(number: int) -> str:
    return f"{number:016x}"


def _parse_offset(after: str | None) -> int:
    """Return the number of an offset, 0 for None. Raise Refused for text that is not an offset."""
    if after is None or after == "":
        return 0
    if not isinstance(after, str) or not _OFFSET.fullmatch(after):
        raise Refused(
            f"after is {after!r:.80}, which is not an offset: use an offset that `events` returned",
            field="after",
        )
    return min(int(after, 16), 2**62)
