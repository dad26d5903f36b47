"""The oracle's implementation of cancel, amend and forget."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.job import Job, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import JobPatch
from dibs.model.results import AmendStatus, CancelStatus
from dibs_conformance.oracle.ending import end_current
from dibs_conformance.oracle.enqueueing import resolve_time
from dibs_conformance.oracle.ids import Amendment, IdRecord, apply_amendment
from dibs_conformance.oracle.queue import OracleQueue


def cancel(queue: OracleQueue, id: str, now: int, *, running: bool) -> CancelStatus:
    """Cancel a waiting job or drop a successor; with `running`, also request the cancellation of the run."""
    record = queue.record(id)
    record.forget_old_drops(now)
    job, outcome = record.current, record.live_outcome(now)
    if job is None:
        return outcome.kind if outcome else "not_found"
    if job.run is None:
        end_current(queue, record, "cancelled", now)
        return "cancelled"
    dropped = drop_successor(queue, record, now)
    if not running:
        return "cancelled" if dropped else "active"
    return cancel_running(queue, record, job, now)


def drop_successor(queue: OracleQueue, record: IdRecord, now: int) -> bool:
    blocked = record.successor()
    if blocked is None:
        return False
    record.drop_successor(now)
    queue.log_attempt_end("cancelled", replace(blocked, attempts=0), now)
    return True


def cancel_running(queue: OracleQueue, record: IdRecord, job: Job, now: int) -> CancelStatus:
    assert job.run is not None  # noqa: S101 - the caller checked it
    if job.run.lease is None:
        end_current(queue, record, "cancelled", now)
        return "cancelled"
    if not job.run.cancel_requested:
        record.current = replace(job, run=replace(job.run, cancel_requested=True))
        queue.log_event("cancel_requested", job.id, now, record.current)
    return "requested"


def amend(queue: OracleQueue, id: str, patch: JobPatch, now: int) -> AmendStatus:
    """Apply a patch to the job, its successor and its outcome. Apply all fields, or none."""
    record = queue.record(id)
    record.forget_old_drops(now)
    job = record.current
    if job is None:
        return amend_outcome(queue, id, patch, now)
    movable = (patch.payload, patch.run_at, patch.delay, patch.priority, patch.lease)
    if job.run is not None and any(part is not UNSET for part in movable):
        return "active"
    entry = Amendment(attributes=patch.attributes, retention=patch.retention)
    record.current = change_waiting(apply_amendment(job, entry), patch, now)
    if record.during_run:
        record.during_run.append(entry)
    if patch.retention is not UNSET and record.live_outcome(now):
        extend_outcome(record, patch.retention, now)
    queue.log_event("amended", id, now, record.current)
    return "amended"


def change_waiting(job: Job, patch: JobPatch, now: int) -> Job:
    """Apply the fields of a patch that only a waiting job accepts."""
    if patch.payload is not UNSET:
        job = replace(job, data=replace(job.data, payload=patch.payload))
    if patch.priority is not UNSET:
        job = replace(job, data=replace(job.data, priority=patch.priority))
    if patch.lease is not UNSET:
        overrides = replace(job.data.overrides or Overrides(), lease=patch.lease)
        job = replace(job, data=replace(job.data, overrides=overrides))
    if patch.run_at is not UNSET or patch.delay is not UNSET:
        run_at = None if patch.run_at is UNSET else patch.run_at
        delay = None if patch.delay is UNSET else patch.delay
        job = replace(job, run_at=resolve_time(run_at, delay, now))
    return job


def amend_outcome(queue: OracleQueue, id: str, patch: JobPatch, now: int) -> AmendStatus:
    record = queue.record(id)
    allowed = JobPatch(attributes=patch.attributes, retention=patch.retention)
    if patch == JobPatch() or patch != allowed or record.live_outcome(now) is None:
        return "not_found"
    if patch.attributes is not UNSET:
        merge_into_outcome(record, patch.attributes)
    if patch.retention is not UNSET:
        extend_outcome(record, patch.retention, now)
    queue.log_event("amended", id, now)
    return "amended"


def merge_into_outcome(record: IdRecord, attributes: Mapping[str, bytes]) -> None:
    """Merge attributes into those that the outcome keeps, in its data or without data."""
    outcome = record.outcome
    assert outcome is not None  # noqa: S101 - live_outcome returned it
    if outcome.data is None:
        record.outcome = replace(outcome, attributes={**outcome.attributes, **attributes})
        return
    merged = {**outcome.data.attributes, **attributes}
    record.outcome = replace(outcome, data=replace(outcome.data, attributes=merged))


def extend_outcome(record: IdRecord, retention: OutcomeRetention, now: int) -> None:
    """Set a new expiry, counted from `now`, if the retention sets a time for this kind of outcome."""
    assert record.outcome is not None  # noqa: S101 - live_outcome returned it
    age = getattr(retention, record.outcome.kind)
    if age is not UNSET:
        record.outcome = replace(record.outcome, expires_at=None if age is None else now + age)


def forget(queue: OracleQueue, id: str, now: int) -> bool:
    """Remove everything of an id. Return whether it had a job or an unexpired outcome."""
    record = queue.record(id)
    had = record.current is not None or record.live_outcome(now) is not None
    queue.ids[id] = IdRecord()
    if had:
        queue.log_event("forgotten", id, now)
    return had
