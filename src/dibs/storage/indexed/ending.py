"""The ends of runs: an end stores its outcome and promotes the successor. And the request to end a run."""

from __future__ import annotations

from dibs.model import events, fold, transitions
from dibs.model.job import ActiveRun, Job, Slot
from dibs.model.requests import Cancelled, Complete, End
from dibs.storage.indexed import output
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def store_end(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: End) -> Job:
    """Store the outcome of the job of a slot, promote its successor, and log both.

    Return the job as it ended: with the range of a successor that creates nothing. The error of the action is
    short enough to be stored.
    """
    now, level, error, result = index.now, queue.settings.log_level, None, None
    if not isinstance(action, Complete):
        error = action.error
    elif queue.settings.log_results:
        result = events.logged_result(action.result, queue.settings.log_results)
    after = transitions.end(slot, job, action, now, queue.settings.retention)
    queue.put(job.id, after)
    if queue.outputs and (known := queue.outputs.get(job.id)) is not None:
        kept = transitions.unexpired(after.outcome, now) is not None
        queue.put_output(job.id, output.after_end(known) if kept else None)
    if slot.successor is not None:
        job = fold.joined_range(job, slot.successor)
    if level != "off":
        kind = transitions.outcome_kind(action)
        index.log_event(queue, events.attempt_event(kind, job, now, error, result))
        if level == "all" and after.current is not None:
            index.log_event(queue, events.note_event("promoted", job.id, now, after.current))
    return job


def ask_to_end(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
    """Request the cancellation of a run under a lease. A handed-off run ends as cancelled at once."""
    if run.lease is None:
        store_end(index, queue, slot, job, Cancelled())
    elif not run.cancel_requested:
        queue.put(job.id, transitions.request_cancel(slot, job, run))
        if queue.settings.log_level == "all":
            index.log_event(queue, events.note_event("cancel_requested", job.id, index.now, job))
