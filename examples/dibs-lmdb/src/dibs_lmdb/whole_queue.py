"""The verbs that change a queue as a whole, each as a function of the queues of one step."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from dibs.model import events, rules
from dibs.model.job import EMPTY
from dibs.model.requests import Settings, SettingsPatch
from dibs.model.results import ExportRecord, ImportStatus, PruneResult
from dibs.storage.indexed.output import without_outcome
from dibs.storage.offsets import format_offset
from dibs_lmdb import keys
from dibs_lmdb.queue import QueueRecords, Queues
from dibs_lmdb.records import LogEntry, unpack

ENTRIES_PER_PRUNE = 1000


def configure(queues: Queues, name: str, patch: SettingsPatch) -> Settings:
    queue, now = queues[name], queues.step.now
    before = queue.record.settings
    settings = rules.changed_settings(before, patch)
    if settings == before:
        return before
    # A change of the log level is logged if the old or the new level includes it.
    if settings.log_level == "all":
        queue.configure(settings)
    if settings.paused != before.paused:
        queue.log(events.note_event("paused" if settings.paused else "resumed", "", now))
    if settings != structs.replace(before, paused=settings.paused):
        queue.log(events.note_event("configured", "", now))
    queue.configure(settings)
    queue.record.work = queue.step.draw()
    return settings


def prune(queues: Queues, name: str, limit: int) -> PruneResult:
    queue, step = queues[name], queues.step
    outcomes = [key[8:] for key, _ in _expired(queue, keys.OUTCOME_EXPIRY, limit + 1)]
    for hashed in outcomes[:limit]:
        record = queue.by_hash(hashed)
        queue.put(record.id, record.slot, structs.replace(record.slot, outcome=None))
        queue.change_output(record.id, without_outcome)
    requests = [key[8:] for key, _ in _expired(queue, keys.REQUEST_EXPIRY, limit + 1)]
    for hashed in requests[:limit]:
        queue.forget_request(hashed)
    old: list[tuple[bytes, int, int]] = []
    size, settings = queue.record.log_bytes, queue.record.settings
    for key, packed in step.scan(queue.prefix(keys.EVENTS)):
        entry = unpack(LogEntry, packed, f"the log of queue {name!r}")
        if len(old) > ENTRIES_PER_PRUNE or (
            size <= settings.log_bytes and step.now < entry.at + settings.log_age
        ):
            break
        old.append((key, len(packed), len(entry.events)))
        size -= len(packed)
    more = len(outcomes) > limit or len(requests) > limit or len(old) > ENTRIES_PER_PRUNE
    for key, length, count in old[:ENTRIES_PER_PRUNE]:
        step.delete(queue.prefix(keys.EVENTS) + key)
        queue.record.log_bytes -= length
        queue.record.trimmed = format_offset(keys.read_number(key), count - 1)
    removed = sum(count for _, _, count in old[:ENTRIES_PER_PRUNE])
    return PruneResult(
        outcomes=len(outcomes[:limit]), request_keys=len(requests[:limit]), events=removed, more=more
    )


def _expired(queue: QueueRecords, tag: bytes, most: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for key, value in queue.step.scan(queue.prefix(tag)):
        if len(found) == most or keys.read_number(key[:8]) > queue.step.now:
            break
        found.append((key, value))
    return found


def import_(queues: Queues, name: str, records: Sequence[ExportRecord]) -> list[ImportStatus]:
    # First, because a run may draw a seq, which is above those of later records.
    numbers = (number for record in records for number in rules.numbers_in(record.slot))
    queues.step.meta.drawn = max(queues.step.meta.drawn, max(numbers, default=0))
    return [_import_record(queues, name, record) for record in records]


def _import_record(queues: Queues, name: str, record: ExportRecord) -> ImportStatus:
    queue, step = queues[name], queues.step
    before = queue.get(record.id)
    if rules.hide_expired_outcome(before, step.now) != EMPTY:
        return "exists"
    after = rules.imported_slot(record.slot, step.now, queue.record.settings.retention, step.draw)
    queue.put(record.id, before, after)
    queue.put_output(record.id, None)  # of an outcome that has expired here
    return "imported"
