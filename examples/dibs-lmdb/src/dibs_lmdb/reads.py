"""The verbs that change nothing, each as a function of the queues of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from dibs.errors import Refused
from dibs.model import rules
from dibs.model.events import LogEvent
from dibs.model.job import EMPTY, Outcome, Slot
from dibs.model.results import Counts, EventPage, ExportPage, ExportRecord, ListPage, QueueInfo, State
from dibs.storage.indexed.output import page
from dibs.storage.offsets import format_offset, parse_offset
from dibs.storage.protocol import LATEST
from dibs_lmdb import keys
from dibs_lmdb.queue import STATE_BYTES, STATE_OF_BYTE, Queues
from dibs_lmdb.records import LogEntry, QueueRecord, unpack

EXACT = 10_000


def get(queues: Queues, name: str, ids: Sequence[str]) -> list[Slot]:
    return [rules.hide_expired_outcome(queues[name].get(id), queues.step.now) for id in ids]


def list_(
    queues: Queues, name: str, state: State, after: str | None, until: str | None, limit: int
) -> ListPage:
    queue, now = queues[name], queues.step.now
    last = _read_cursor("until", until) or keys.LAST_HASH
    items: list[tuple[str, Slot]] = []
    prefix = queue.prefix(keys.STATE) + STATE_BYTES["waiting" if state == "scheduled" else state]
    for hashed, _ in queues.step.scan(prefix, _start(after)):
        if hashed > last:
            break
        record = queue.by_hash(hashed)
        slot = rules.hide_expired_outcome(record.slot, now)
        if rules.is_in_state(slot, state, now):
            items.append((record.id, slot))
            if len(items) == limit:
                return ListPage(items=tuple(items), after=hashed.hex())
    return ListPage(items=tuple(items), after=None)


def export(queues: Queues, name: str, after: str | None, until: str | None, limit: int) -> ExportPage:
    queue = queues[name]
    last = _read_cursor("until", until) or keys.LAST_HASH
    records: list[ExportRecord] = []
    for hashed, _ in queues.step.scan(queue.prefix(keys.SLOT), _start(after)):
        if hashed > last:
            break
        record = queue.by_hash(hashed)
        slot = rules.hide_expired_outcome(record.slot, queues.step.now)
        if slot != EMPTY:
            records.append(ExportRecord(id=record.id, slot=slot))
            if len(records) == limit:
                return ExportPage(records=tuple(records), settings=queue.record.settings, after=hashed.hex())
    return ExportPage(records=tuple(records), settings=queue.record.settings, after=None)


def split(parts: int) -> list[str]:
    """Divide all hashes evenly."""
    whole = 1 << (8 * keys.HASH)
    return [(whole * part // parts).to_bytes(keys.HASH, "big").hex() for part in range(1, parts)]


def _read_cursor(field: str, cursor: str | None) -> bytes | None:
    if cursor is None:
        return None
    try:
        read = bytes.fromhex(cursor)
    except ValueError:
        read = b""
    if len(read) != keys.HASH:
        raise Refused(f"{field} is {cursor!r}, which is not a cursor of this storage", field=field)
    return read


def _start(after: str | None) -> bytes:
    read = _read_cursor("after", after)
    return b"" if read is None else read + b"\0"


def counts(queues: Queues, name: str) -> Counts:
    queue, now = queues[name], queues.step.now
    states, approximate = dict(queue.record.states), False
    for seen, (key, kind) in enumerate(queues.step.scan(queue.prefix(keys.OUTCOME_EXPIRY))):
        if keys.read_number(key[:8]) > now:
            break
        if seen == EXACT:
            approximate = True
            break
        states[STATE_OF_BYTE[kind]] -= 1
    scheduled = 0
    waiting = chain.from_iterable(queues.step.scan(queue.prefix(tag)) for tag in (keys.DUE, keys.PAUSED))
    for seen, (place, _) in enumerate(waiting):
        if seen == EXACT:
            approximate = True
            break
        scheduled += keys.read_number(place[2:10]) > now
    return Counts(**states, scheduled=scheduled, approximate=approximate)


def queues_(queues: Queues) -> list[QueueInfo]:
    found = []
    for _, packed in queues.step.scan(keys.QUEUE):
        record = unpack(QueueRecord, packed, "a queue")
        found.append(QueueInfo(name=record.name, settings=record.settings))
    return found


def events(queues: Queues, name: str, after: str | None, limit: int) -> EventPage:
    record = queues[name].record
    if after == LATEST:
        return EventPage(events=(), offset=record.logged)
    number, index = (0, -1) if after == "" else parse_offset(after)
    fell_off = after is not None and after < record.trimmed
    found: list[tuple[str, LogEvent]] = []
    for key, packed in queues.step.scan(queues[name].prefix(keys.EVENTS), keys.number(number)):
        entry_number = keys.read_number(key)
        first = index + 1 if entry_number == number else 0
        for at, event in enumerate(
            unpack(LogEntry, packed, f"the log of queue {name!r}").events[first:], first
        ):
            found.append((format_offset(entry_number, at), event))
            if len(found) == limit:
                return EventPage(events=tuple(found), offset=found[-1][0], fell_off=fell_off)
    offset = found[-1][0] if found else max(after or "", record.trimmed)
    return EventPage(events=tuple(found), offset=offset, fell_off=fell_off)


def output(queues: Queues, name: str, id: str, after: str | None, limit: int) -> EventPage:
    has_outcome = rules.hide_expired_outcome(queues[name].get(id), queues.step.now).outcome is not None
    return page(queues[name].output(id), after, limit, with_outcome=has_outcome)


Token = tuple[int, int]


def has_news(
    queues: Queues, names: Sequence[str], for_: str, ids: Sequence[str], since: Mapping[str, Token]
) -> tuple[bool, int | None, dict[str, Outcome]]:
    """Return whether a wait is over, the ms until the next job falls due, and the outcomes of ended ids."""
    over, due_in, outcomes = False, None, {}
    for name in names:
        queue = queues[name]
        number, seen = since[name]
        if for_ == "events":
            over = over or queue.record.logged_number > number
        elif for_ in ("ids", "progress"):
            if for_ == "progress":
                reported = [queue.reported_number(id) for id in ids] if ids else [queue.record.reported]
                over = over or max(reported) > number
            for id in ids:
                if queue.ended_number(id) > number:
                    over = True
                    outcome = rules.hide_expired_outcome(queue.get(id), queues.step.now).outcome
                    if outcome is not None:
                        outcomes[id] = outcome
        else:
            over = over or (number >= 0 and queue.record.work > number)
            if not queue.record.settings.paused and queue.has_room():
                run_at = queue.next_run_at(seen)
                if run_at is not None:
                    wait = run_at - queues.step.now
                    over = over or wait <= 0
                    due_in = wait if due_in is None else min(due_in, wait)
    return over, due_in, outcomes
