"""Verbs by id, and those that keep a queue in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.events import NoteKind
from dibs.model.job import EMPTY, ActiveRun, Job, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, JobPatch, Settings, SettingsPatch
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ExportRecord,
    ImportStatus,
    PruneResult,
    RetryFailedStatus,
)
from dibs.storage.indexed import settling
from dibs.storage.indexed.enqueueing import import_one
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def cancel(index: Index, queue: str, ids: Sequence[str], running: bool) -> list[CancelStatus]:  # noqa: FBT001
    """Cancel what waits or is blocked; with `running`, ask what is active to stop."""
    source = index.look(queue)
    return [_cancel(index, source, id, running=running) for id in ids]


def _cancel(index: Index, queue: QueueIndex, id: str, *, running: bool) -> CancelStatus:
    slot = queue.slots.get(id, EMPTY)
    job, verdict = slot.current, rules.cancel(slot, index.now, running=running)
    if job is None or verdict == "active":
        return verdict
    if job.run is None:
        settling.end(index, queue, slot, job, Cancelled())
        return verdict
    slot = _without_successor(index, queue, id, slot)
    if running:
        _ask(index, queue, slot, job, job.run)
    return verdict


def _without_successor(index: Index, queue: QueueIndex, id: str, slot: Slot) -> Slot:
    successor = slot.successor
    if successor is None:
        return slot
    slot = transitions.drop_successor(slot, successor, index.now)
    queue.put(id, slot)
    if queue.settings.log_level != "off":
        index.tell(queue, events.dropped_event(id, successor, index.now))
    return slot


def _ask(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
    if run.lease is None:
        settling.end(index, queue, slot, job, Cancelled())
    elif not run.cancel_requested:
        queue.put(job.id, transitions.request_cancel(slot, job, run))
        if queue.settings.log_level == "all":
            index.tell(queue, events.note_event("cancel_requested", job.id, index.now, job))


def amend(index: Index, queue: str, id: str, patch: JobPatch, limits: Limits) -> AmendStatus:
    """Change what a patch names, whole or not at all. Raises Refused when attributes grow too large."""
    source = index.look(queue)
    slot = source.slots.get(id, EMPTY)
    verdict = rules.amend(slot, patch, index.now)
    if verdict != "amended":
        return verdict
    after = transitions.amend(slot, patch, index.now)
    for part in (after.current, after.successor):
        if part is not None and patch.attributes is not UNSET:
            check_attributes(part.data.attributes, limits)
    source.put(id, after)
    if source.settings.log_level == "all":
        index.tell(source, events.note_event("amended", id, index.now, after.current or after.outcome))
    return "amended"


def retry_failed(index: Index, queue: str, ids: Sequence[str]) -> list[RetryFailedStatus]:
    """Let failed jobs wait again."""
    source = index.look(queue)
    return [_retry_failed(index, source, id) for id in ids]


def _retry_failed(index: Index, queue: QueueIndex, id: str) -> RetryFailedStatus:
    slot = queue.slots.get(id, EMPTY)
    verdict, outcome = rules.retry_failed(slot, index.now), slot.outcome
    if verdict != "queued" or outcome is None or outcome.data is None:
        return verdict
    after = transitions.retry_failed(slot, outcome, id, outcome.data, index.now, index.draw())
    queue.put(id, after)
    if queue.settings.log_level == "all":
        index.tell(queue, events.note_event("queued", id, index.now, after.current))
    return "queued"


def forget(index: Index, queue: str, ids: Sequence[str]) -> list[bool]:
    """Remove everything of each id."""
    source = index.look(queue)
    return [_forget(index, source, id) for id in ids]


def _forget(index: Index, queue: QueueIndex, id: str) -> bool:
    slot = queue.slots.get(id, EMPTY)
    known = slot.current is not None or transitions.unexpired(slot.outcome, index.now) is not None
    if slot is not EMPTY:
        queue.put(id, EMPTY)
    if known and queue.settings.log_level == "all":
        index.tell(queue, events.note_event("forgotten", id, index.now, slot.current or slot.outcome))
    return known


def configure(index: Index, queue: str, patch: SettingsPatch) -> Settings:
    """Change what a patch names."""
    source = index.queue(queue)
    before = source.settings
    named = {name: getattr(patch, name) for name in patch.__struct_fields__}
    after = replace(before, **{name: value for name, value in named.items() if value is not UNSET})
    if after == before:
        return before
    source.put_settings(after)
    if "all" in (before.log_level, after.log_level):
        if before.paused != after.paused:
            kind: NoteKind = "paused" if after.paused else "resumed"
            index.tell(source, events.note_event(kind, "", index.now))
        if replace(before, paused=after.paused) != after:
            index.tell(source, events.note_event("configured", "", index.now))
    return after


def prune(index: Index, queue: str, limit: int) -> PruneResult:
    """Remove what has expired."""
    source = index.look(queue)
    outcomes = _prune_outcomes(source, limit)
    keys = _prune_keys(source, index.now, limit)
    settings = source.settings
    excess = source.log.excess(index.now - settings.log_age, settings.log_bytes)
    trimmed = source.log.entries[:excess]
    if trimmed:
        source.put_trim(trimmed[-1].number)
    return PruneResult(
        outcomes=outcomes,
        request_keys=keys,
        events=sum(entry.count for entry in trimmed),
        more=limit in (outcomes, keys),
    )


def _prune_outcomes(queue: QueueIndex, limit: int) -> int:
    ids = list(islice(queue.expired, limit))
    for id in ids:
        slot = queue.slots[id]
        queue.put(id, EMPTY if slot.current is None else replace(slot, outcome=None))
    return len(ids)


def _prune_keys(queue: QueueIndex, now: int, limit: int) -> int:
    count = 0
    while queue.key_ends and queue.key_ends[0][0] <= now and count < limit:
        expires_at, key = queue.pop_key_end()
        known = queue.keys.get(key)
        if known is not None and known.expires_at == expires_at:
            queue.put_key(key, None)
            count += 1
    return count


def import_(index: Index, queue: str, records: Sequence[ExportRecord]) -> list[ImportStatus]:
    """Take whole ids in."""
    source = index.queue(queue)
    return [import_one(index, source, record.id, record.slot) for record in records]
