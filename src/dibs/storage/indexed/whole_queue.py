"""The verbs that change a queue as a whole: configure, prune, import_."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.events import NoteKind
from dibs.model.job import EMPTY, Slot
from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import ExportRecord, ImportStatus, PruneResult
from dibs.storage.indexed import output
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.orders import QUEUE_CLOCK
from dibs.storage.indexed.queue_index import QueueIndex


def configure(index: Index, queue: str, patch: SettingsPatch) -> Settings:
    """Change the settings that the patch names, and return all settings. Log level `all` logs the change."""
    source = index.queue(queue)
    before = source.settings
    after = rules.changed_settings(before, patch)
    if after == before:
        return before
    _reset_clocks(source, before, after)
    source.put_settings(after)
    source.change_turns(before, after)
    if "all" in (before.log_level, after.log_level):
        if before.paused != after.paused:
            kind: NoteKind = "paused" if after.paused else "resumed"
            index.log_event(source, events.note_event(kind, "", index.now))
        if replace(before, paused=after.paused) != after:
            index.log_event(source, events.note_event("configured", "", index.now))
    return after


def _reset_clocks(queue: QueueIndex, before: Settings, after: Settings) -> None:
    """Remove the clocks of each rate that changes, so that they begin again."""
    if before.rate != after.rate:
        queue.put_clock(QUEUE_CLOCK, None)
    if before.key_rate != after.key_rate:
        for key in list(queue.clocks.values):
            if key != QUEUE_CLOCK:
                queue.put_clock(key, None)


def prune(index: Index, queue: str, limit: int) -> PruneResult:
    """Remove up to `limit` expired outcomes, request keys and past clocks each, and old log entries.

    Log entries are old beyond the settings log_age and log_bytes.
    """
    source = index.find_queue(queue)
    outcomes = _prune_outcomes(source, limit)
    keys = _prune_keys(source, index.now, limit)
    clocks = _prune_clocks(source, index.now, limit)
    settings = source.settings
    trimmed = source.log.excess(index.now - settings.log_age, settings.log_bytes)
    if trimmed:
        source.put_trim(trimmed[-1].number)
    return PruneResult(
        outcomes=outcomes,
        request_keys=keys,
        events=sum(entry.count for entry in trimmed),
        more=limit in (outcomes, keys, clocks),
    )


def _prune_outcomes(queue: QueueIndex, limit: int) -> int:
    ids = list(islice(queue.expired, limit))
    for id in ids:
        slot = queue.slots[id]
        queue.put(id, EMPTY if slot.current is None else replace(slot, outcome=None))
        if (known := queue.outputs.get(id)) is not None:
            queue.put_output(id, output.without_outcome(known))
    return len(ids)


def _prune_keys(queue: QueueIndex, now: int, limit: int) -> int:
    count = 0
    while queue.key_expiries and queue.key_expiries[0][0] <= now and count < limit:
        expires_at, key = queue.pop_key_expiry()
        known = queue.keys.get(key)
        if known is not None and known.expires_at == expires_at:
            queue.put_key(key, None)
            count += 1
    return count


def _prune_clocks(queue: QueueIndex, now: int, limit: int) -> int:
    """Remove up to `limit` clocks that are not later than now, and so have no effect."""
    count = 0
    while count < limit and (key := queue.clocks.first_past(now)) is not None:
        queue.put_clock(key, None)
        count += 1
    return count


def import_(index: Index, queue: str, records: Sequence[ExportRecord]) -> list[ImportStatus]:
    """Import whole ids. A run may draw a seq, so the counter is raised above all their numbers first."""
    source = index.queue(queue)
    index.number = max([index.number, *(number for one in records for number in rules.numbers_in(one.slot))])
    return [_import_record(index, source, record.id, record.slot) for record in records]


def _import_record(index: Index, queue: QueueIndex, id: str, slot: Slot) -> ImportStatus:
    """Restore an exported id, unless it has a job or an unexpired outcome here."""
    existing = queue.slots.get(id, EMPTY)
    if existing.current is not None or transitions.unexpired(existing.outcome, index.now):
        return "exists"
    queue.put(id, rules.imported_slot(slot, index.now, queue.settings.retention, index.next_number))
    if id in queue.outputs:
        queue.put_output(id, None)  # of an outcome that has expired here
    return "imported"
