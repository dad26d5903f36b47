"""What can be told of an id, or of one enqueue, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dibs.client.options.durations import utc_datetime, utc_datetime_or_none
from dibs.model.job import Error, Job, JobData, Outcome, Slot, Successor
from dibs.model.results import State
from dibs.model.ticket_state import ticket_state

JobState = Literal[
    "waiting", "active", "handed_off", "blocked", "completed", "failed", "cancelled", "not_kept"
]


class Status(Struct, frozen=True, kw_only=True):
    """A moment in the life of a job; what does not apply is None, 0 or empty. Times are in UTC."""

    queue: str
    id: str
    state: JobState
    #: The end of its range of revisions (contract 1, Done).
    revision: int = 0
    #: When it may start; in the future, it is what `scheduled` counts.
    run_at: datetime | None = None
    enqueued_at: datetime | None = None
    claimed_at: datetime | None = None
    ended_at: datetime | None = None
    #: Until when the outcome is kept; None with an outcome is for ever.
    expires_at: datetime | None = None
    #: How many enqueues it holds.
    enqueues: int = 0
    #: Claims so far, and why it came back.
    attempts: int = 0
    retries: int = 0
    stalls: int = 0
    timeouts: int = 0
    priority: int = 0
    attributes: Mapping[str, Any] = {}
    #: Who runs it or ran it, and under which fence.
    holder: str = ""
    fence: int = 0
    progress: Any = None
    cancel_requested: bool = False
    #: Of a failed outcome, or of the latest run that came back.
    error: Error | None = None


def status_of(queue: str, id: str, slot: Slot) -> Status | None:
    """Return the status of an id: of its current, else of its outcome; None when nothing is known."""
    if slot.current is not None:
        return _of_job(queue, slot.current)
    return None if slot.outcome is None else _of_outcome(queue, id, slot.outcome)


def status_in(queue: str, id: str, slot: Slot, state: State) -> Status:
    """Return the status of what was listed under a state."""
    if state == "blocked" and slot.successor is not None:
        return _of_successor(queue, id, slot.successor)
    if state in ("completed", "failed", "cancelled") and slot.outcome is not None:
        return _of_outcome(queue, id, slot.outcome)
    return _of_job(queue, slot.current) if slot.current else Status(queue=queue, id=id, state="not_kept")


def status_at(queue: str, id: str, slot: Slot, revision: int) -> Status:
    """Return the status of one enqueue, which may be another than that of the id (contract 1, Done)."""
    found = ticket_state(slot, revision)
    if found.outcome is not None:
        return _of_outcome(queue, id, found.outcome)
    if found.kind != "pending":
        return Status(queue=queue, id=id, state=found.kind, revision=revision)
    if slot.current is not None and revision <= slot.current.revision:
        return _of_job(queue, slot.current)
    assert slot.successor is not None, "pending is in current or successor"  # noqa: S101
    return _of_successor(queue, id, slot.successor)


def _of_job(queue: str, job: Job) -> Status:
    run = job.run
    return Status(
        queue=queue,
        id=job.id,
        state="waiting" if run is None else "active" if run.lease is not None else "handed_off",
        revision=job.revision,
        run_at=utc_datetime(job.run_at),
        enqueued_at=utc_datetime(job.enqueued_at),
        claimed_at=utc_datetime(run.claimed_at) if run else None,
        enqueues=job.enqueues,
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        priority=job.data.priority,
        attributes=attributes_in(job.data),
        holder=run.holder if run else "",
        fence=run.fence if run else 0,
        progress=msgspec.json.decode(run.progress) if run and run.progress is not None else None,
        cancel_requested=bool(run and run.cancel_requested),
        error=job.error,
    )


def _of_successor(queue: str, id: str, successor: Successor) -> Status:
    return Status(
        queue=queue,
        id=id,
        state="blocked",
        revision=successor.revision,
        run_at=utc_datetime(successor.run_at),
        enqueued_at=utc_datetime(successor.enqueued_at),
        enqueues=successor.enqueues,
        priority=successor.data.priority,
        attributes=attributes_in(successor.data),
    )


def _of_outcome(queue: str, id: str, outcome: Outcome) -> Status:
    return Status(
        queue=queue,
        id=id,
        state=outcome.kind,
        revision=outcome.revision,
        run_at=utc_datetime(outcome.run_at),
        enqueued_at=utc_datetime(outcome.enqueued_at),
        claimed_at=utc_datetime_or_none(outcome.claimed_at),
        ended_at=utc_datetime(outcome.ended_at),
        expires_at=utc_datetime_or_none(outcome.expires_at),
        enqueues=outcome.enqueues,
        attempts=outcome.attempts,
        retries=outcome.retries,
        stalls=outcome.stalls,
        timeouts=outcome.timeouts,
        priority=outcome.data.priority if outcome.data else 0,
        attributes=attributes_in(outcome.data) if outcome.data else {},
        holder=outcome.holder,
        fence=outcome.fence,
        error=outcome.error,
    )


def attributes_in(data: JobData) -> dict[str, Any]:
    """Return attributes as values."""
    return {name: msgspec.json.decode(raw) for name, raw in data.attributes.items()}
