"""The transitions of an id (contract 3). A function takes the slot of the id and returns the next slot.

A slot holds everything about one id. dibs.model.rules decides which transition an operation needs. The caller
has checked the limits, read the clock of the storage (`now`), and drawn the numbers (`number`, `seq`,
`fence`).

"Waiting -> active" means that a waiting job becomes active. The states are: nothing, waiting, active, and
active+blocked (active with a successor, which merges the enqueues during the run).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import fold
from dibs.model.job import (
    DEFAULT_RETENTION,
    EMPTY,
    NO_ATTRIBUTES,
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
from dibs.model.overrides import Overrides
from dibs.model.requests import Complete, End, Fail, JobPatch, Release, Update
from dibs.model.retry import RetryCause

#: The most dropped ranges that an id keeps. Each is a range of enqueues that a cancel removed during a run
#: (contract 1, When an enqueue is done).
DROPPED_KEPT = 8


def resolve_run_at(new: NewJob, now: int) -> int:
    """Return the run_at of a new job, in ms since the epoch: its `run_at`, or `now` plus its `delay`."""
    if new.run_at is not None:
        return new.run_at
    return now if new.delay is None else now + new.delay


def unexpired(outcome: Outcome | None, now: int) -> Outcome | None:
    """Return the outcome, or None if `now` is `expires_at` or later."""
    if outcome is None or (outcome.expires_at is not None and now >= outcome.expires_at):
        return None
    return outcome


# -- enqueue -----------------------------------------------------------------------------------------


def enqueue_first(slot: Slot, new: NewJob, now: int, number: int) -> Slot:
    """Nothing -> waiting, with all counts 0. An older outcome stays until the end of the job replaces it."""
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


def update(slot: Slot, job: Job, new: NewJob, rule: Update, now: int, number: int) -> Slot:
    """Waiting -> waiting, updated in place: the job keeps its seq.

    A parked job that the rule moves is no longer parked: its seq becomes the revision. `wake` moves only a
    parked job, to now.
    """
    seq, run_at_rule = job.seq, rule.run_at
    if job.is_parked and run_at_rule != "never":
        seq = number
        if run_at_rule == "wake":
            run_at_rule = "earlier"
    job = replace(
        job,
        data=new.data if rule.replaces else job.data,
        run_at=fold.move_run_at(job.run_at, run_at_rule, resolve_run_at(new, now)),
        seq=seq,
        revision=number,
        enqueues=job.enqueues + 1,
    )
    return replace(slot, current=fold.with_zero_counts(job) if rule.resets else job)


def block(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Slot:
    """Active -> active+blocked. Active+blocked -> the same, with the update folded into the successor."""
    at = resolve_run_at(new, now)
    if slot.successor is None:
        return replace(slot, successor=fold.start_successor(new, rule, at, now, number))
    return replace(slot, successor=fold.add_update(slot.successor, new, rule, at, now, number))


# -- claim, and back to waiting ----------------------------------------------------------------------


def claim(job: Job, fence: int, lease: str, holder: str, now: int) -> Job:
    """Waiting -> active under a lease; `attempts` grows by 1."""
    run = ActiveRun(fence=fence, lease=lease, holder=holder, claimed_at=now)
    return replace(job, attempts=job.attempts + 1, run=run)


def retry(slot: Slot, job: Job, cause: RetryCause, run_at: int, seq: int, error: Error | None) -> Slot:
    """Active -> waiting until `run_at`, with a new seq and 1 more for `cause`.

    The updates of the successor, if any, are applied to the returned job.
    """
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
    return _back_to_waiting(slot, back)


def release_by(slot: Slot, job: Job, action: Release, now: int, draw: Callable[[], int]) -> Slot:
    """Active -> waiting by an action Release. `draw` returns a new number, for the seq of the job.

    - Without a time, the job keeps its seq. A job that was claimed while it was parked has none, and draws
      one.
    - With `parked`, the job is parked: its seq becomes 0. If a request was blocked since the claim, the job
      is due now instead, so that its next run finds what came.
    """
    run_at = action.run_at if action.delay is None else now + action.delay
    if action.parked:
        if not _was_blocked(slot, job):
            return release(slot, job, run_at, 0)
        run_at = now
    return release(slot, job, run_at, draw() if run_at is not None or job.seq == 0 else None)


def _was_blocked(slot: Slot, job: Job) -> bool:
    """Return whether a request was blocked since the claim of the run, also one that a cancel dropped."""
    assert job.run is not None, "bug in dibs: only a run is released"  # noqa: S101
    return slot.successor is not None or (bool(slot.dropped) and slot.dropped[-1][1] > job.run.fence)


def release(slot: Slot, job: Job, run_at: int | None = None, seq: int | None = None) -> Slot:
    """Active -> waiting, with 1 attempt less, as if the job had not been claimed.

    A release with a time gets the new `run_at` and `seq`; without both, the job keeps its own. With the
    seq 0 it is parked. The updates of the successor, if any, are applied to the returned job.
    """
    back = replace(
        job,
        run_at=job.run_at if run_at is None else run_at,
        seq=job.seq if seq is None else seq,
        attempts=job.attempts - 1,
        run=None,
    )
    return _back_to_waiting(slot, back)


def _back_to_waiting(slot: Slot, back: Job) -> Slot:
    if slot.successor is not None:
        back = fold.job_after_return(back, slot.successor)
    return replace(slot, current=back, successor=None)


def hand_off(slot: Slot, job: Job, run: ActiveRun) -> Slot:
    """Active -> active without a lease. From then on, the run can end, but cannot return to waiting."""
    return replace(slot, current=replace(job, run=replace(run, lease=None)))


def request_cancel(slot: Slot, job: Job, run: ActiveRun) -> Slot:
    """Active -> active with a requested cancellation. From then on, the run can end, but cannot return."""
    return replace(slot, current=replace(job, run=replace(run, cancel_requested=True)))


def report(slot: Slot, job: Job, run: ActiveRun, progress: bytes | None, memo: bytes | None) -> Slot:
    """Active -> active with new progress (encoded JSON), a new memo, or both. An empty memo removes it."""
    if progress is not None:
        job = replace(job, run=replace(run, progress=progress))
    if memo is not None:
        job = replace(job, data=replace(job.data, memo=memo or None))
    return replace(slot, current=job)


# -- ends --------------------------------------------------------------------------------------------


def end(slot: Slot, job: Job, action: End, now: int, queue_retention: OutcomeRetention) -> Slot:
    """Waiting or active -> an outcome, which replaces an older one. The successor becomes the waiting job.

    A successor that creates nothing makes no job. Its range joins that of the outcome, and must join that of
    the event and the fail job as well (fold.joined_range).
    """
    successor = slot.successor
    ended = job if successor is None else fold.joined_range(job, successor)
    outcome = make_outcome(ended, action, now, queue_retention)
    heir = None if successor is None or not successor.creates else fold.job_after_end(job.id, successor)
    if heir is None and not slot.dropped:
        return Slot(None, None, outcome)
    return Slot(heir, None, outcome, slot.dropped)


def outcome_kind(action: End) -> EndKind:
    """Return the kind of outcome for an action that ends a run."""
    if isinstance(action, Complete):
        return "completed"
    return "failed" if isinstance(action, Fail) else "cancelled"


def make_outcome(job: Job, action: End, now: int, queue_retention: OutcomeRetention) -> Outcome:
    """Return the outcome of a job that ends at `now`. It has no details if it expires at once."""
    kind, run, data = outcome_kind(action), job.run, job.data
    fence = run.fence if run else 0
    own, of_job = action.retention, data.retention
    if own is None and of_job is None:
        retentions: tuple[OutcomeRetention | None, ...] = (queue_retention,)  # of most jobs
    else:
        retentions = (own, of_job, queue_retention)
    expires_at = outcome_expiry(kind, now, retentions)
    if expires_at is not None and expires_at <= now:
        # The outcome has expired already. Until prune, its fence and range answer repeated settlements.
        return Outcome(
            kind=kind,
            fence=fence,
            first=job.first,
            revision=job.revision,
            ended_at=now,
            expires_at=expires_at,
        )
    outcome = Outcome(
        kind=kind,
        fence=fence,
        first=job.first,
        revision=job.revision,
        ended_at=now,
        expires_at=expires_at,
        result=action.result if isinstance(action, Complete) else None,
        enqueues=job.enqueues,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        claimed_at=run.claimed_at if run else None,
        holder=run.holder if run else "",
        attempts=job.attempts,
    )
    keeps_data = kind in kinds_that_keep_data(retentions)
    is_plain = not (job.retries or job.stalls or job.timeouts or data.attributes or job.origin)
    if kind == "completed" and is_plain and not keeps_data and (run is None or run.progress is None):
        return outcome
    return _with_details(outcome, job, action, keeps_data=keeps_data)


def _with_details(outcome: Outcome, job: Job, action: End, *, keeps_data: bool) -> Outcome:
    """Return the outcome with the fields that the outcomes of most completed jobs leave empty.

    It is a step of its own: with more than 15 keywords Python passes them in a dictionary, at seven times the
    cost.
    """
    data = job.data
    return replace(
        outcome,
        error=None if isinstance(action, Complete) else action.error,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        data=_kept_data(data, outcome.kind) if keeps_data else None,
        origin=job.origin,
        attributes=NO_ATTRIBUTES if keeps_data else data.attributes,
        progress=job.run.progress if job.run else None,
    )


def _kept_data(data: JobData, kind: EndKind) -> JobData:
    """Return the data that an outcome keeps. Only a failed job can run again, so only its memo is kept."""
    return data if data.memo is None or kind == "failed" else replace(data, memo=None)


def outcome_expiry(kind: EndKind, now: int, retentions: Sequence[OutcomeRetention | None]) -> int | None:
    """Return the time at which an outcome expires, in ms since the epoch; None for never.

    The first of the retentions that sets this kind of end counts, and DEFAULT_RETENTION after them.
    """
    ms: int | None
    for retention in retentions:
        if retention is not None and (ms := getattr(retention, kind)) is not UNSET:
            break
    else:
        ms = getattr(DEFAULT_RETENTION, kind)
    return None if ms is None else now + ms


def kinds_that_keep_data(retentions: Sequence[OutcomeRetention | None]) -> tuple[EndKind, ...]:
    """Return the kinds of end whose outcome keeps the data of the job.

    The first retention that sets `keep_payload` counts. By default, failed outcomes keep the data.
    """
    for retention in retentions:
        if retention is not None and retention.keep_payload is not UNSET:
            return retention.keep_payload
    return ("failed",)


def make_fail_job(queue: str, job: Job, error: Error, id: str, now: int, number: int) -> Job:
    """Return the fail job of a job that failed: it has the same payload, and the failed job as its origin."""
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
        run_at=job.run_at,
        attributes=job.data.attributes,
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


def drop_successor(slot: Slot, successor: Successor, now: int) -> Slot:
    """Active+blocked -> active. The range of the successor becomes a dropped range."""
    return replace(slot, successor=None, dropped=_add_dropped_range(slot, successor, now))


def _add_dropped_range(slot: Slot, successor: Successor, now: int) -> tuple[RevisionRange, ...]:
    """Return the dropped ranges of the id, with the range of this successor as the last.

    Older ranges stay only if they lie inside the range of the current or of the outcome (contract 1, When an
    enqueue is done).
    """
    current = slot.current
    assert current is not None, "bug in dibs: a successor without an active job"  # noqa: S101
    ranges = slot.dropped
    if ranges and current.revision < ranges[-1][0]:
        # The last dropped range and this one are both newer than the current, so one range can cover both.
        return (*ranges[:-1], (ranges[-1][0], successor.revision))
    outcome = unexpired(slot.outcome, now)
    spans = [(current.first, current.revision)]
    if outcome is not None:
        spans.append((outcome.first, outcome.revision))
    inside = [r for r in ranges if any(a <= r[0] and r[1] <= b for a, b in spans)]
    return (*inside, (successor.first, successor.revision))[-DROPPED_KEPT:]


def retry_failed(
    slot: Slot, outcome: Outcome, id: str, data: JobData, now: int, number: int, *, delay: int = 0
) -> Slot:
    """Failed outcome -> waiting and due after `delay` ms, with all counts 0 and a new revision."""
    job = Job(
        id=id,
        data=data,
        run_at=now + delay,
        enqueued_at=now,
        seq=number,
        first=number,
        revision=number,
        origin=outcome.origin,
    )
    return Slot(job, None, None, slot.dropped)


def amend(slot: Slot, patch: JobPatch, now: int) -> Slot:
    """Apply the patch to the current, the successor and the outcome, once it is allowed."""
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    if current is not None:
        current = replace(
            current, data=_amend_data(current.data, patch), run_at=_amend_run_at(current, patch, now)
        )
    if successor is not None and successor.creates:
        successor = replace(successor, data=_amend_data(successor.data, patch))
    if outcome is not None and unexpired(outcome, now):
        if patch.retention is not UNSET:
            outcome = _change_outcome_retention(outcome, patch.retention, now)
        if current is None:
            outcome = _change_outcome_attributes(outcome, patch)
    return replace(slot, current=current, successor=successor, outcome=outcome)


def _change_outcome_retention(outcome: Outcome, retention: OutcomeRetention, now: int) -> Outcome:
    """Return the outcome with its expiry counted from `now`, if the retention sets a time for its kind."""
    ms = getattr(retention, outcome.kind)
    return outcome if ms is UNSET else replace(outcome, expires_at=None if ms is None else now + int(ms))


def _change_outcome_attributes(outcome: Outcome, patch: JobPatch) -> Outcome:
    """Return the outcome with the attributes of the patch merged into those that it keeps."""
    if patch.attributes is UNSET:
        return outcome
    attributes = {**outcome.kept_attributes, **patch.attributes}
    if outcome.data is None:
        return replace(outcome, attributes=attributes)
    return replace(outcome, data=replace(outcome.data, attributes=attributes))


def _amend_data(data: JobData, patch: JobPatch) -> JobData:
    overrides = data.overrides
    if patch.lease is not UNSET:
        overrides = replace(overrides or Overrides(), lease=patch.lease)
    return replace(
        data,
        payload=data.payload if patch.payload is UNSET else patch.payload,
        attributes=data.attributes if patch.attributes is UNSET else {**data.attributes, **patch.attributes},
        priority=data.priority if patch.priority is UNSET else patch.priority,
        overrides=overrides,
        retention=data.retention if patch.retention is UNSET else patch.retention,
    )


def _amend_run_at(job: Job, patch: JobPatch, now: int) -> int:
    if patch.run_at is not UNSET:
        return patch.run_at
    return job.run_at if patch.delay is UNSET else now + patch.delay
