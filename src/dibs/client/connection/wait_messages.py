"""The messages of WaitTimeout, OutcomeNotKept and others: they say what the last read of the job showed."""

from __future__ import annotations

from dibs.client.options.arguments import utc_datetime
from dibs.model.job import Error, Job, Outcome, Slot
from dibs.model.ticket_state import TicketState


def timeout_message(label: str, slot: Slot, revision: int) -> str:
    """Return the message for a wait that ended before the enqueue `revision` of the id did.

    `label` is "queue/id". `slot` is the slot of the id that the wait read last.
    """
    return f"{label} did not end in time: {_describe_pending(slot, revision)}"


def _describe_pending(slot: Slot, revision: int) -> str:
    current = slot.current
    if current is None:
        return "wait again or cancel it"
    if slot.successor is not None and slot.successor.first <= revision:
        return (
            f"it waits until the active run of the same id ends (attempt {current.attempts}); wait again or "
            "cancel it"
        )
    if current.run is not None:
        return f"attempt {current.attempts} is active; wait again, or cancel it with running=True"
    return _describe_waiting(current)


def _describe_waiting(job: Job) -> str:
    if job.attempts == 0 and job.run_at <= job.enqueued_at:
        return "it was never claimed. Is a worker running for this queue, and is the queue not paused?"
    since = "it was never claimed" if job.attempts == 0 else f"it waits again after attempt {job.attempts}"
    due = utc_datetime(job.run_at).isoformat(timespec="seconds")
    return f"{since} and is due at {due}; wait longer, or check that a worker runs for this queue"


def not_kept_message(label: str, state: TicketState, revision: int) -> str:
    """Return the message for an enqueue that ended and has no kept outcome. `label` is "queue/id"."""
    ended = f"{label}: the enqueue with revision {revision} ended, and its outcome is no longer kept"
    match state.later:
        case "ended":
            return (
                f"{ended}: a later run of the same id replaced it, and an id keeps only its latest outcome; "
                "use an id of its own for each result, or read the result before the next run ends"
            )
        case "live":
            return (
                f"{ended}. The id was enqueued again, and that job is live, so it is not the result of this "
                "ticket; wait for the ticket of the later enqueue, or raise the retention"
            )
        case None:
            return (
                f"{label}: the storage keeps neither a job nor an outcome of the enqueue with revision "
                f"{revision}. Either it ended and its outcome expired or was removed: raise its retention to "
                "read it later. Or the storage lost it, as a failover or a restored backup may: enqueue it "
                "again"
            )


def failure_message(label: str, outcome: Outcome) -> str:
    """Return the message for a failed job: its attempts and its error. `label` is "queue/id"."""
    error = outcome.error
    reason = f"{error.type}: {error.message}" if error else "the storage kept no error"
    attempts = "1 attempt" if outcome.attempts == 1 else f"{outcome.attempts} attempts"
    return f"{label} failed permanently after {attempts}: {reason}"


def cancelled_message(label: str, reason: Error) -> str:
    """Return the message for a job that was cancelled with a reason. `label` is "queue/id"."""
    return f"{label} was cancelled: {reason.type}: {reason.message}"
