"""The start and the completion of a plain run, which most runs are, on a fast path of its own.

A plain run has no key, and the slot of its id holds nothing else: no successor, no outcome, no dropped range.
Its completion has no follow-ups and no retention. The functions store the same as `QueueIndex.put` and
`settling.end`, with half as many calls.
"""

from __future__ import annotations

from dibs.model import events, transitions
from dibs.model.job import Job, Slot
from dibs.model.requests import Complete
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def start(queue: QueueIndex, slot: Slot, job: Job, lease: str) -> bool:
    """Store `job`, which was claimed under `lease`. Change nothing and return False if it is not plain.

    `slot` is the slot before the claim, with the waiting job.
    """
    if slot.outcome is not None or slot.dropped or job.data.key is not None:
        return False
    id, changes = job.id, queue.changes or queue.step_changes()
    changes.slots.setdefault(id, slot)
    queue.slots[id] = Slot(job)
    queue.waiting -= 1
    queue.active += 1
    held = queue.held.get(lease)
    if held is None:
        queue.held[lease] = {id: None}
    else:
        held[id] = None
    return True


def complete(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: Complete) -> bool:
    """Complete the active job of a slot. Change nothing and return False if the completion is not plain."""
    run, settings = job.run, queue.settings
    if action.then or action.retention is not None or job.data.key is not None:
        return False
    if (
        run is None
        or run.lease is None
        or slot.successor is not None
        or slot.outcome is not None
        or slot.dropped
    ):
        return False
    id, now = job.id, index.now
    outcome = transitions.make_outcome(job, action, now, settings.retention)
    changes = queue.changes or queue.step_changes()
    changes.slots.setdefault(id, slot)
    changes.ended.append(id)
    queue.slots[id] = Slot(None, None, outcome)
    queue.remove_active(id, run)
    queue.outcomes.put(id, None, outcome, now)
    if settings.log_level != "off":
        result = events.logged_result(action.result, settings.log_results) if settings.log_results else None
        index.log_event(queue, events.attempt_event("completed", job, now, None, result))
    return True
