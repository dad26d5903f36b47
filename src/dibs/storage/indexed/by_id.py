"""The verbs by id: cancel, amend, retry_failed, forget."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from dibs.model import events, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.job import EMPTY, ActiveRun, Job, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, JobPatch
from dibs.model.results import AmendStatus, CancelStatus, RetryFailedStatus
from dibs.storage.indexed import settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def cancel(index: Index, queue: str, ids: Sequence[str], running: bool) -> list[CancelStatus]:  # noqa: FBT001
    """Cancel what waits or is blocked; with `running`, ask what is active to stop."""
    source = index.find_queue(queue)
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
        index.log_event(queue, events.dropped_event(id, successor, index.now))
    return slot


def _ask(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
    if run.lease is None:
        settling.end(index, queue, slot, job, Cancelled())
    elif not run.cancel_requested:
        queue.put(job.id, transitions.request_cancel(slot, job, run))
        if queue.settings.log_level == "all":
            index.log_event(queue, events.note_event("cancel_requested", job.id, index.now, job))


def amend(index: Index, queue: str, id: str, patch: JobPatch, limits: Limits) -> AmendStatus:
    """Change what a patch names, whole or not at all. Raises Refused when attributes grow too large."""
    source = index.find_queue(queue)
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
        index.log_event(source, events.note_event("amended", id, index.now, after.current or after.outcome))
    return "amended"


def retry_failed(index: Index, queue: str, ids: Sequence[str]) -> list[RetryFailedStatus]:
    """Let failed jobs wait again."""
    source = index.find_queue(queue)
    return [_retry_failed(index, source, id) for id in ids]


def _retry_failed(index: Index, queue: QueueIndex, id: str) -> RetryFailedStatus:
    slot = queue.slots.get(id, EMPTY)
    verdict, outcome = rules.retry_failed(slot, index.now), slot.outcome
    if verdict != "queued" or outcome is None or outcome.data is None:
        return verdict
    after = transitions.retry_failed(slot, outcome, id, outcome.data, index.now, index.next_number())
    queue.put(id, after)
    if queue.settings.log_level == "all":
        index.log_event(queue, events.note_event("queued", id, index.now, after.current))
    return "queued"


def forget(index: Index, queue: str, ids: Sequence[str]) -> list[bool]:
    """Remove everything of each id."""
    source = index.find_queue(queue)
    return [_forget(index, source, id) for id in ids]


def _forget(index: Index, queue: QueueIndex, id: str) -> bool:
    slot = queue.slots.get(id, EMPTY)
    known = slot.current is not None or transitions.unexpired(slot.outcome, index.now) is not None
    if slot is not EMPTY:
        queue.put(id, EMPTY)
    if known and queue.settings.log_level == "all":
        index.log_event(queue, events.note_event("forgotten", id, index.now, slot.current or slot.outcome))
    return known
