"""What all ends of a job share, and the request that a run ends."""

from __future__ import annotations

from dibs.model import events, fold, transitions
from dibs.model.job import ActiveRun, Job, Slot
from dibs.model.requests import Cancelled, Complete, End
from dibs.storage.indexed import output
from dibs_sqlite.transaction import QueueRows, Transaction


def store_end(tx: Transaction, queue: QueueRows, slot: Slot, job: Job, how: End) -> Job:
    """Store the outcome of a job, promote its successor, and log both. Return the job as it ended."""
    after = transitions.end(slot, job, how, tx.now, queue.settings.retention)
    queue.put(job.id, slot, after)
    is_kept = transitions.unexpired(after.outcome, tx.now) is not None
    queue.change_output(job.id, lambda known: output.after_end(known) if is_kept else None)
    ended = fold.joined_range(job, slot.successor)
    queue.log_event(_end_event(tx, queue, ended, how))
    if after.current is not None:
        queue.log_event(events.note_event("promoted", job.id, tx.now, after.current))
    return ended


def _end_event(tx: Transaction, queue: QueueRows, job: Job, how: End) -> events.LogEvent:
    if isinstance(how, Complete):
        result = events.logged_result(how.result, queue.settings.log_results)
        return events.attempt_event("completed", job, tx.now, result=result)
    return events.attempt_event(transitions.outcome_kind(how), job, tx.now, how.error)


def ask_to_end(tx: Transaction, queue: QueueRows, slot: Slot, job: Job, run: ActiveRun) -> None:
    """Request the cancellation of a run under a lease. A handed-off run ends as cancelled at once."""
    if run.lease is None:
        store_end(tx, queue, slot, job, Cancelled())
    elif not run.cancel_requested:
        queue.put(job.id, slot, transitions.request_cancel(slot, job, run))
        queue.log_event(events.note_event("cancel_requested", job.id, tx.now, job))
