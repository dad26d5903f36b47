"""Cancel, amend and forget: what is done to an id by name."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.job import Job, OutcomeRetention
from dibs.model.requests import JobPatch
from dibs.model.results import AmendStatus, CancelStatus
from dibs_conformance.oracle.ending import close
from dibs_conformance.oracle.enqueueing import resolved
from dibs_conformance.oracle.ids import Known, Patched, patched
from dibs_conformance.oracle.queue import Queue


def cancel(queue: Queue, id: str, now: int, *, running: bool) -> CancelStatus:
    """End what waits, drop what is blocked, and with `running` ask the run to stop."""
    known = queue.known(id)
    known.tidy(now)
    job, outcome = known.current, known.alive(now)
    if job is None:
        return outcome.kind if outcome else "not_found"
    if job.run is None:
        close(queue, known, "cancelled", now)
        return "cancelled"
    dropped = drop_blocked(queue, known, now)
    if not running:
        return "cancelled" if dropped else "active"
    return cancel_running(queue, known, job, now)


def drop_blocked(queue: Queue, known: Known, now: int) -> bool:
    blocked = known.successor()
    if blocked is None:
        return False
    known.drop_successor(now)
    queue.attempt_ended("cancelled", replace(blocked, attempts=0), now)
    return True


def cancel_running(queue: Queue, known: Known, job: Job, now: int) -> CancelStatus:
    assert job.run is not None  # noqa: S101 - the caller saw it
    if job.run.lease is None:
        close(queue, known, "cancelled", now)
        return "cancelled"
    known.current = replace(job, run=replace(job.run, cancel_requested=True))
    return "requested"


def amend(queue: Queue, id: str, patch: JobPatch, now: int) -> AmendStatus:
    """Take the patch whole, or not at all."""
    known = queue.known(id)
    known.tidy(now)
    job = known.current
    if job is None:
        return amend_outcome(queue, id, patch, now)
    movable = (patch.payload, patch.run_at, patch.delay, patch.priority)
    if job.run is not None and any(part is not UNSET for part in movable):
        return "active"
    entry = Patched(attributes=patch.attributes, retention=patch.retention)
    known.current = moved(patched(job, entry), patch, now)
    if known.beside:
        known.beside.append(entry)
    if patch.retention is not UNSET and known.alive(now):
        extend(known, patch.retention, now)
    queue.note("amended", id, now)
    return "amended"


def moved(job: Job, patch: JobPatch, now: int) -> Job:
    """Apply what only a waiting job may change."""
    if patch.payload is not UNSET:
        job = replace(job, data=replace(job.data, payload=patch.payload))
    if patch.priority is not UNSET:
        job = replace(job, data=replace(job.data, priority=patch.priority))
    if patch.run_at is not UNSET or patch.delay is not UNSET:
        run_at = None if patch.run_at is UNSET else patch.run_at
        delay = None if patch.delay is UNSET else patch.delay
        job = replace(job, run_at=resolved(run_at, delay, now))
    return job


def amend_outcome(queue: Queue, id: str, patch: JobPatch, now: int) -> AmendStatus:
    known = queue.known(id)
    only_retention = JobPatch(retention=patch.retention) == patch
    if patch.retention is UNSET or not only_retention or known.alive(now) is None:
        return "not_found"
    extend(known, patch.retention, now)
    assert known.outcome is not None  # noqa: S101 - it is alive
    queue.note("amended", id, now)
    return "amended"


def extend(known: Known, retention: OutcomeRetention, now: int) -> None:
    """The outcome's expiry counts from now."""
    assert known.outcome is not None  # noqa: S101 - it is alive
    age = getattr(retention, known.outcome.kind)
    if age is not UNSET:
        known.outcome = replace(known.outcome, expires_at=None if age is None else now + age)


def forget(queue: Queue, id: str, now: int) -> bool:
    """Remove everything of an id."""
    known = queue.known(id)
    had = known.current is not None or known.alive(now) is not None
    queue.ids[id] = Known()
    if had:
        queue.note("forgotten", id, now)
    return had
