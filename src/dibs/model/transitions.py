"""One pure function for each intention: a slot in, the next slot out (contract 3).

Who calls has checked limits, found the slot, read the storage's clock and drawn the number; what is
decided about the id is decided here. An outcome that has expired must be treated as absent, which is
why some functions take `now`.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import fold
from dibs.model.job import (
    DEFAULT_RETENTION,
    EMPTY,
    ActiveRun,
    EndKind,
    Error,
    Job,
    JobData,
    NewJob,
    Origin,
    Outcome,
    OutcomeRetention,
    RevisionRange,
    Slot,
    Successor,
)
from dibs.model.requests import Cancelled, Complete, End, Fail, JobPatch, Update
from dibs.model.retry import RetryCause

#: How many dropped ranges an id remembers (contract 1, Done).
DROPPED_KEPT = 8


def resolve_run_at(new: NewJob, now: int) -> int:
    """Return the absolute run_at of what is asked for."""
    if new.run_at is not None:
        return new.run_at
    return now if new.delay is None else now + new.delay


def unexpired(outcome: Outcome | None, now: int) -> Outcome | None:
    """Return the outcome unless it has expired."""
    if outcome is None or (outcome.expires_at is not None and now >= outcome.expires_at):
        return None
    return outcome


# -- enqueue -----------------------------------------------------------------------------------------


def queue(slot: Slot, new: NewJob, now: int, number: int) -> Slot:
    """Nothing -> waiting, counts 0; an older outcome stays readable until an end replaces it."""
    job = Job(
        id=new.id,
        data=new.data,
        run_at=resolve_run_at(new, now),
        enqueued_at=now,
        seq=number,
        first=number,
        revision=number,
    )
    return Slot(job) if slot is EMPTY else replace(slot, current=job)


def update(slot: Slot, job: Job, new: NewJob, how: Update, now: int, number: int) -> Slot:
    """Waiting -> waiting, in its place in line."""
    job = replace(
        job,
        data=new.data if how.data else job.data,
        run_at=fold.move_run_at(job.run_at, how.run_at, resolve_run_at(new, now)),
        revision=number,
        enqueues=job.enqueues + 1,
    )
    return replace(slot, current=fold.with_zero_counts(job) if how.resets else job)


def block(slot: Slot, new: NewJob, how: Update, now: int, number: int) -> Slot:
    """Active -> active+blocked; active+blocked -> the same with one more update folded in."""
    at = resolve_run_at(new, now)
    if slot.successor is None:
        return replace(slot, successor=fold.start(new, how, at, now, number))
    return replace(slot, successor=fold.add(slot.successor, new, how, at, number))


# -- claim, and back to waiting ----------------------------------------------------------------------


def claim(job: Job, fence: int, lease: str, holder: str, now: int) -> Job:
    """Waiting -> active under a lease, attempts + 1."""
    run = ActiveRun(fence=fence, lease=lease, holder=holder, claimed_at=now)
    return replace(job, attempts=job.attempts + 1, run=run)


def retry(slot: Slot, job: Job, cause: RetryCause, run_at: int, seq: int, error: Error | None) -> Slot:
    """Active -> waiting at `run_at` at the back of its equals, one count up, the successor folded in."""
    back = replace(
        job,
        run_at=run_at,
        seq=seq,
        retries=job.retries + (cause == "error"),
        timeouts=job.timeouts + (cause == "timeout"),
        stalls=job.stalls + (cause == "stall"),
        error=error or job.error,
        run=None,
    )
    return _returned(slot, back)


def release(slot: Slot, job: Job) -> Slot:
    """Active -> waiting as before the claim, the successor folded in."""
    return _returned(slot, replace(job, attempts=job.attempts - 1, run=None))


def _returned(slot: Slot, back: Job) -> Slot:
    if slot.successor is not None:
        back = fold.job_after_return(back, slot.successor)
    return replace(slot, current=back, successor=None)


def hand_off(slot: Slot, job: Job, run: ActiveRun) -> Slot:
    """Active -> active without a lease: from now on it can only end."""
    return replace(slot, current=replace(job, run=replace(run, lease=None)))


def request_cancel(slot: Slot, job: Job, run: ActiveRun) -> Slot:
    """Active -> active, asked to stop; it will not come back."""
    return replace(slot, current=replace(job, run=replace(run, cancel_requested=True)))


def report(slot: Slot, job: Job, run: ActiveRun, progress: bytes) -> Slot:
    """Active -> active with new progress."""
    return replace(slot, current=replace(job, run=replace(run, progress=progress)))


# -- ends --------------------------------------------------------------------------------------------


def end(slot: Slot, job: Job, how: End, now: int, queue_retention: OutcomeRetention) -> Slot:
    """Current -> outcome, replacing any older one; the successor becomes waiting."""
    outcome = outcome_of(job, how, now, queue_retention)
    heir = None if slot.successor is None else fold.job_after_end(job.id, slot.successor)
    if heir is None and not slot.dropped:
        return Slot(None, None, outcome)
    return Slot(heir, None, outcome, slot.dropped)


def outcome_kind(how: End) -> EndKind:
    """Return the word for the outcome that an end makes."""
    if isinstance(how, Complete):
        return "completed"
    return "failed" if isinstance(how, Fail) else "cancelled"


def outcome_of(job: Job, how: End, now: int, queue_retention: OutcomeRetention) -> Outcome:
    """Return what is retained of a job that ends now."""
    kind, run = outcome_kind(how), job.run
    fence = run.fence if run else 0
    expires_at = expiry(kind, now, how.retention, job.data.retention, queue_retention)
    outcome = Outcome(
        kind=kind,
        fence=fence,
        first=job.first,
        revision=job.revision,
        ended_at=now,
        expires_at=expires_at,
    )
    if expires_at is not None and expires_at <= now:
        # What is not kept is not told to anyone: until prune, fence and range answer repeats.
        return outcome
    keeps_data = kind in keep_payload(how.retention, job.data.retention, queue_retention)
    # Not all at once: beyond 15 keywords Python calls by way of a dictionary, at seven times the cost.
    return replace(
        outcome,
        result=how.result if isinstance(how, Complete) else None,
        error=how.error if isinstance(how, Fail) else None,
        enqueues=job.enqueues,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        claimed_at=run.claimed_at if run else None,
        holder=run.holder if run else "",
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        data=job.data if keeps_data else None,
        origin=job.origin,
    )


def expiry(kind: EndKind, now: int, *said: OutcomeRetention | None) -> int | None:
    """Return when an outcome of this kind ends; the first that says something counts, then the default."""
    for retention in said:
        if retention is not None and (ms := getattr(retention, kind)) is not UNSET:
            break
    else:
        ms = getattr(DEFAULT_RETENTION, kind)
    return None if ms is None else now + int(ms)


def keep_payload(*said: OutcomeRetention | None) -> tuple[EndKind, ...]:
    """Return the ends that keep what the job was asked to do."""
    for retention in said:
        if retention is not None and retention.keep_payload is not UNSET:
            return retention.keep_payload
    return ("failed",)


def fail_job(queue: str, job: Job, error: Error, id: str, now: int, number: int) -> Job:
    """Return the fail job of a job that failed for good: same payload, and the story as its origin."""
    origin = Origin(
        queue=queue,
        id=job.id,
        revision=job.revision,
        fence=job.run.fence if job.run else 0,
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        enqueued_at=job.enqueued_at,
        error=error,
    )
    return Job(
        id=id,
        data=JobData(payload=job.data.payload),
        run_at=now,
        enqueued_at=now,
        seq=number,
        first=number,
        revision=number,
        origin=origin,
    )


# -- cancel, amend, retry_failed ---------------------------------------------------------------------


def cancel_waiting(slot: Slot, job: Job, now: int, queue_retention: OutcomeRetention) -> Slot:
    """Waiting -> gone, with an outcome cancelled."""
    return end(slot, job, Cancelled(), now, queue_retention)


def drop_successor(slot: Slot, successor: Successor, now: int) -> Slot:
    """Active+blocked -> active; the successor's range becomes a dropped range."""
    return replace(slot, successor=None, dropped=_with_dropped(slot, successor, now))


def _with_dropped(slot: Slot, successor: Successor, now: int) -> tuple[RevisionRange, ...]:
    """Return the ranges worth keeping once this successor is dropped (contract 1, Done)."""
    current = slot.current
    assert current is not None, "a successor stands beside an active current"  # noqa: S101
    ranges = slot.dropped
    if ranges and current.revision < ranges[-1][0]:
        # Nothing between the last dropped range and this one is in the current, so one range says both.
        return (*ranges[:-1], (ranges[-1][0], successor.revision))
    outcome = unexpired(slot.outcome, now)
    spans = [(current.first, current.revision)]
    if outcome is not None:
        spans.append((outcome.first, outcome.revision))
    inside = [r for r in ranges if any(a <= r[0] and r[1] <= b for a, b in spans)]
    return (*inside, (successor.first, successor.revision))[-DROPPED_KEPT:]


def retry_failed(slot: Slot, outcome: Outcome, id: str, data: JobData, now: int, number: int) -> Slot:
    """Failed -> waiting at now, counts 0, with a fresh revision; the failed outcome is consumed."""
    job = Job(
        id=id,
        data=data,
        run_at=now,
        enqueued_at=now,
        seq=number,
        first=number,
        revision=number,
        origin=outcome.origin,
    )
    return Slot(job, None, None, slot.dropped)


def amend(slot: Slot, patch: JobPatch, now: int) -> Slot:
    """Change what a patch names, in current, successor and outcome as each may take it."""
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    if current is not None:
        current = replace(current, data=_amended(current.data, patch), run_at=_new_time(current, patch, now))
    if successor is not None:
        successor = replace(successor, data=_amended(successor.data, patch))
    if outcome is not None and patch.retention is not UNSET and unexpired(outcome, now):
        outcome = _kept_anew(outcome, patch.retention, now)
    return replace(slot, current=current, successor=successor, outcome=outcome)


def _kept_anew(outcome: Outcome, retention: OutcomeRetention, now: int) -> Outcome:
    """Return the outcome with its expiry counted from now, unless nothing is said of its kind."""
    ms = getattr(retention, outcome.kind)
    return outcome if ms is UNSET else replace(outcome, expires_at=None if ms is None else now + int(ms))


def _amended(data: JobData, patch: JobPatch) -> JobData:
    return JobData(
        payload=data.payload if patch.payload is UNSET else patch.payload,
        attributes=data.attributes if patch.attributes is UNSET else {**data.attributes, **patch.attributes},
        priority=data.priority if patch.priority is UNSET else patch.priority,
        overrides=data.overrides,
        retention=data.retention if patch.retention is UNSET else patch.retention,
    )


def _new_time(job: Job, patch: JobPatch, now: int) -> int:
    if patch.run_at is not UNSET:
        return patch.run_at
    return job.run_at if patch.delay is UNSET else now + patch.delay
