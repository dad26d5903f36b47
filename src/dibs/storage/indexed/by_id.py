"""The verbs that change given ids: cancel, amend, retry_failed, forget."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.job import EMPTY, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, JobPatch
from dibs.model.results import AmendStatus, CancelStatus, RetryFailedStatus
from dibs.storage.indexed import settling
from dibs.storage.indexed.ending import ask_to_end
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def cancel(index: Index, queue: str, ids: Sequence[str], running: bool) -> list[CancelStatus]:  # noqa: FBT001
    """Cancel waiting jobs and successors of active jobs. With `running`, also ask active runs to cancel."""
    source = index.find_queue(queue)
    return [_cancel(index, source, id, running=running) for id in ids]


def _cancel(index: Index, queue: QueueIndex, id: str, *, running: bool) -> CancelStatus:
    slot = queue.slots.get(id, EMPTY)
    job, status = slot.current, rules.decide_cancel(slot, index.now, running=running)
    if job is None or status == "active":
        return status
    if job.run is None:
        settling.end(index, queue, slot, job, Cancelled())
        return status
    slot = _drop_successor(index, queue, id, slot)
    if running:
        ask_to_end(index, queue, slot, job, job.run)
    return status


def _drop_successor(index: Index, queue: QueueIndex, id: str, slot: Slot) -> Slot:
    successor = slot.successor
    if successor is None:
        return slot
    slot = transitions.drop_successor(slot, successor, index.now)
    queue.put(id, slot)
    if queue.settings.log_level != "off":
        index.log_event(queue, events.dropped_event(id, successor, index.now))
    return slot


def amend(index: Index, queue: str, id: str, patch: JobPatch, limits: Limits) -> AmendStatus:
    """Apply a patch as a whole or not at all. Raise Refused if the merged attributes are too large."""
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    status = rules.decide_amend(slot, patch, index.now)
    if status != "amended":
        return status
    after = transitions.amend(slot, patch, index.now)
    if patch.attributes is not UNSET:
        _check_attributes(after, limits)
    source.put(id, after)
    if source.settings.log_level == "all":
        index.log_event(source, events.note_event("amended", id, index.now, after.current))
    return "amended"


def _check_attributes(after: Slot, limits: Limits) -> None:
    """Raise Refused if attributes that an amend has merged are too large."""
    for part in (after.current, after.successor):
        if part is not None:
            check_attributes(part.data.attributes, limits)
    if after.current is None and after.outcome is not None:
        check_attributes(after.outcome.kept_attributes, limits)


def retry_failed(index: Index, queue: str, ids: Sequence[str], delay: int) -> list[RetryFailedStatus]:
    """Enqueue failed jobs again, with the payload and options that their outcomes kept."""
    source = index.find_queue(queue)
    return [_retry_failed(index, source, id, delay) for id in ids]


def _retry_failed(index: Index, queue: QueueIndex, id: str, delay: int) -> RetryFailedStatus:
    slot = queue.slots.get(id, EMPTY)
    status, outcome = rules.decide_retry_failed(slot, index.now), slot.outcome
    if status != "queued" or outcome is None or outcome.data is None:
        return status
    number = index.next_number()
    after = transitions.retry_failed(slot, outcome, id, outcome.data, index.now, number, delay=delay)
    queue.put(id, after)
    if (known := queue.outputs.get(id)) is not None:
        queue.put_output(id, replace(known, begin=0))
    if queue.settings.log_level == "all":
        index.log_event(queue, events.note_event("queued", id, index.now, after.current))
    return "queued"


def forget(index: Index, queue: str, ids: Sequence[str]) -> list[bool]:
    """Remove the job, successor and outcome of each id. Return for each id whether it had one of them."""
    source = index.find_queue(queue)
    return [_forget(index, source, id) for id in ids]


def _forget(index: Index, queue: QueueIndex, id: str) -> bool:
    slot = queue.slots.get(id, EMPTY)
    existed = slot.current is not None or transitions.unexpired(slot.outcome, index.now) is not None
    if slot is not EMPTY:
        queue.put(id, EMPTY)
    if id in queue.outputs:
        queue.put_output(id, None)
    if existed and queue.settings.log_level == "all":
        index.log_event(queue, events.note_event("forgotten", id, index.now))
    return existed
