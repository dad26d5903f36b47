"""`Status`, which `queue.get`, `queue.list` and `ticket.status` return, and its construction from a slot.

A slot is everything that the storage keeps for one id: the current job, a blocked successor that runs after
an active job, and the outcome of the last job that ended.
"""

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

#: State of a job in a Status. `not_kept` is the state of an enqueue whose outcome has expired.
JobState = Literal[
    "waiting", "active", "handed_off", "blocked", "completed", "failed", "cancelled", "not_kept"
]


class Status(Struct, frozen=True, kw_only=True):
    """The status of a job. Times are in UTC; a field that does not apply is None, 0 or empty."""

    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    state: JobState
    """State of the job; `not_kept` if the outcome of an enqueue has expired."""
    revision: int = 0
    """Number of the latest enqueue that this job contains: `ticket.revision` of that enqueue."""
    run_at: datetime | None = None
    """Time from which the job may start. A waiting job with a future time counts as `scheduled`."""
    enqueued_at: datetime | None = None
    """Time of the enqueue."""
    claimed_at: datetime | None = None
    """Time at which a worker claimed the latest run."""
    ended_at: datetime | None = None
    """Time at which the job ended."""
    expires_at: datetime | None = None
    """Time until which the outcome is kept; None for an outcome that is kept for ever."""
    enqueues: int = 0
    """Number of enqueues that this job contains: later ones may have updated it."""
    attempts: int = 0
    """Number of claims so far."""
    retries: int = 0
    """Number of times the job returned to the queue after an error."""
    stalls: int = 0
    """Number of times the job returned to the queue because its worker was gone."""
    timeouts: int = 0
    """Number of times the job returned to the queue after a timeout."""
    priority: int = 0
    """Priority, -1000 to 1000; a higher number starts first."""
    attributes: Mapping[str, Any] = {}
    """Attributes of the job."""
    holder: str = ""
    """Name of the worker of the latest run."""
    fence: int = 0
    """Number of the latest run, which grows with each claim of the id."""
    progress: Any = None
    """Progress that the active run reported last."""
    cancel_requested: bool = False
    """True if the active run was asked to stop."""
    error: Error | None = None
    """Error of a failed job, or of the latest run of a job that returned to the queue."""


def slot_status(queue: str, id: str, slot: Slot) -> Status | None:
    """Return the status of the current job, else of the outcome; None for a slot without both."""
    if slot.current is not None:
        return _job_status(queue, slot.current)
    return None if slot.outcome is None else _outcome_status(queue, id, slot.outcome)


def listed_status(queue: str, id: str, slot: Slot, state: State) -> Status:
    """Return the status of an id in a listing of `state`.

    The id may have an active job, a blocked successor and an outcome at the same time; `state` selects one.
    """
    if state == "blocked" and slot.successor is not None:
        return _successor_status(queue, id, slot.successor)
    if state in ("completed", "failed", "cancelled") and slot.outcome is not None:
        return _outcome_status(queue, id, slot.outcome)
    return _job_status(queue, slot.current) if slot.current else Status(queue=queue, id=id, state="not_kept")


def enqueue_status(queue: str, id: str, slot: Slot, revision: int) -> Status:
    """Return the status of the enqueue with the number `revision` (contract 1, Done).

    It differs from the status of the id if the id was enqueued again after this enqueue had ended.
    """
    found = ticket_state(slot, revision)
    if found.outcome is not None:
        return _outcome_status(queue, id, found.outcome)
    if found.kind != "pending":
        return Status(queue=queue, id=id, state=found.kind, revision=revision)
    if slot.current is not None and revision <= slot.current.revision:
        return _job_status(queue, slot.current)
    assert slot.successor is not None, "bug in dibs: neither job contains the pending revision"  # noqa: S101
    return _successor_status(queue, id, slot.successor)


def _job_status(queue: str, job: Job) -> Status:
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
        attributes=decode_attributes(job.data),
        holder=run.holder if run else "",
        fence=run.fence if run else 0,
        progress=msgspec.json.decode(run.progress) if run and run.progress is not None else None,
        cancel_requested=bool(run and run.cancel_requested),
        error=job.error,
    )


def _successor_status(queue: str, id: str, successor: Successor) -> Status:
    return Status(
        queue=queue,
        id=id,
        state="blocked",
        revision=successor.revision,
        run_at=utc_datetime(successor.run_at),
        enqueued_at=utc_datetime(successor.enqueued_at),
        enqueues=successor.enqueues,
        priority=successor.data.priority,
        attributes=decode_attributes(successor.data),
    )


def _outcome_status(queue: str, id: str, outcome: Outcome) -> Status:
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
        attributes=decode_attributes(outcome.data) if outcome.data else {},
        holder=outcome.holder,
        fence=outcome.fence,
        error=outcome.error,
    )


def decode_attributes(data: JobData) -> dict[str, Any]:
    """Return the attributes of a job, decoded from JSON."""
    return {name: msgspec.json.decode(raw) for name, raw in data.attributes.items()}
