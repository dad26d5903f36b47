"""Settle and finish: how a run ends, how it comes back, and what a late holder is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.check_jobs import check_then
from dibs.model.error_text import checked_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import FAIL_SUFFIX, EndKind, Error, Job, Origin, Outcome, OutcomeRetention
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import FinishStatus, SettleResult
from dibs_conformance.oracle.enqueueing import enqueue, enqueue_fail_job, resolve_time
from dibs_conformance.oracle.ids import IdRecord, OneOf, replay
from dibs_conformance.oracle.queue import Queue


class Queues(Protocol):
    """Where an end finds the queues its follow-ups go to."""

    def queue(self, name: str) -> Queue: ...


def settle(queues: Queues, queue: Queue, settlement: Settlement, now: int) -> SettleResult | OneOf:
    """End the run or bring it back, if it is active under exactly this fence."""
    record, how = queue.record(settlement.id), settlement.action
    job = record.current
    if job is None or job.run is None or job.run.fence != settlement.fence:
        return repeated_result(record, settlement.fence, how, now)
    if isinstance(how, Complete | Fail | Cancelled):
        return check_limits(how) or end_run(queues, queue, record, how, now)
    if isinstance(how, HandOff):
        return hand_off(queue, record, job, now)
    if job.run.lease is None:
        return SettleResult("refused")
    return return_run(queue, record, how, now)


def repeated_result(record: IdRecord, fence: int, how: SettleAction, now: int) -> SettleResult | OneOf:
    """A repeat is told the truth while the outcome, or what prune left of it, remembers the fence."""
    outcome = record.outcome
    lost = SettleResult("lost")
    if outcome is None or outcome.fence != fence or not fence:
        return lost
    if end_kind(how) == outcome.kind:
        told = SettleResult("done")
    elif end_kind(how) is None and outcome.kind == "cancelled":
        told = SettleResult("cancelled")
    else:
        return lost
    return told if record.live_outcome(now) else OneOf((told, lost))


def end_kind(how: SettleAction) -> EndKind | None:
    match how:
        case Complete():
            return "completed"
        case Fail():
            return "failed"
        case Cancelled():
            return "cancelled"
        case _:
            return None


def check_limits(how: End) -> SettleResult | None:
    """A result too large, or a follow-up that breaks a limit, refuses the settlement whole."""
    try:
        check_then(() if isinstance(how, Cancelled) else how.then)
    except Refused:
        return SettleResult("refused")
    large = isinstance(how, Complete) and how.result is not None and len(how.result) > LIMITS.result
    return SettleResult("refused") if large else None


def end_run(queues: Queues, queue: Queue, record: IdRecord, how: End, now: int) -> SettleResult:
    """End, then promote, then enqueue the follow-ups and the fail job."""
    kind = end_kind(how)
    job = record.current
    assert job is not None, kind is not None  # noqa: S101 - an end ends a current
    match how:
        case Complete():
            end_current(queue, record, "completed", now, result=how.result, given=how.retention)
            enqueue_follow_ups(queues, how.then, now)
        case Fail():
            error = checked_error(how.error)
            end_current(queue, record, "failed", now, error=error, given=how.retention)
            if how.handled and not queue.name.endswith(FAIL_SUFFIX):
                fail_queue = queues.queue(queue.name + FAIL_SUFFIX)
                enqueue_fail_job(fail_queue, job.data.payload, origin(queue, job, error), now)
            enqueue_follow_ups(queues, how.then, now)
        case Cancelled():
            end_current(queue, record, "cancelled", now, given=how.retention)
    return SettleResult("done")


def enqueue_follow_ups(queues: Queues, then: Iterable[FollowUp], now: int) -> None:
    for item in then:
        enqueue(queues.queue(item.queue), EnqueueRequest(job=item.job, on_conflict=item.on_conflict), now)


def origin(queue: Queue, job: Job, error: Error) -> Origin:
    assert job.run is not None  # noqa: S101 - only runs fail
    return Origin(
        queue=queue.name,
        id=job.id,
        revision=job.revision,
        fence=job.run.fence,
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        enqueued_at=job.enqueued_at,
        error=error,
    )


def end_current(
    queue: Queue,
    record: IdRecord,
    kind: EndKind,
    now: int,
    *,
    result: bytes | None = None,
    error: Error | None = None,
    given: OutcomeRetention | None = None,
) -> None:
    """The current is gone, its outcome replaces any older one, the successor becomes waiting."""
    job = record.current
    assert job is not None  # noqa: S101 - the caller saw it
    age, keeps = queue.retention(kind, job, given)
    record.outcome = Outcome(
        kind=kind,
        fence=job.run.fence if job.run else 0,
        first=job.first,
        revision=job.revision,
        ended_at=now,
        expires_at=None if age is None else now + age,
        result=result,
        error=error,
        enqueues=job.enqueues,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        claimed_at=job.run.claimed_at if job.run else None,
        holder=job.run.holder if job.run else "",
        attempts=job.attempts,
        retries=job.retries,
        stalls=job.stalls,
        timeouts=job.timeouts,
        data=job.data if keeps else None,
        origin=job.origin,
    )
    queue.attempt_ended(kind, job, now, error)
    record.current, record.during_run = record.successor(), []
    if record.current is not None:
        queue.log_event("promoted", job.id, now)
    record.forget_old_drops(now)


def hand_off(queue: Queue, record: IdRecord, job: Job, now: int) -> SettleResult:
    """The run leaves its lease; asked to cancel, it ends instead."""
    assert job.run is not None  # noqa: S101 - the caller saw it
    if job.run.lease is None:
        return SettleResult("handed_off", revision=job.revision)
    if job.run.cancel_requested:
        end_current(queue, record, "cancelled", now)
        return SettleResult("cancelled")
    record.current = replace(job, run=replace(job.run, lease=None))
    queue.log_event("handed_off", job.id, now)
    return SettleResult("handed_off", revision=job.revision)


def return_run(queue: Queue, record: IdRecord, how: SettleAction, now: int) -> SettleResult:
    assert isinstance(how, RetryLater | Release)  # noqa: S101 - the caller saw to the others
    if not return_to_waiting(queue, record, how, now):
        return SettleResult("cancelled")
    return SettleResult("returned")


def return_to_waiting(queue: Queue, record: IdRecord, how: RetryLater | Release, now: int) -> bool:
    """Bring the current back as waiting with the list applied; False: it ended as cancelled instead."""
    job = record.current
    assert job is not None  # noqa: S101 - the caller saw it
    assert job.run is not None  # noqa: S101
    if job.run.cancel_requested:
        end_current(queue, record, "cancelled", now)
        return False
    if isinstance(how, Release):
        queue.attempt_ended("released", job, now)
        returned = replace(job, attempts=job.attempts - 1)
    else:
        error = None if how.error is None else checked_error(how.error)
        queue.attempt_ended(KIND_OF_CAUSE[how.cause], job, now, error)
        returned = replace(job, seq=queue.numbers.draw(), error=error or job.error)
        returned = replace(
            returned, run_at=resolve_time(how.run_at, how.delay, now), **raised_count(job, how)
        )
    record.current, record.during_run = replay(replace(returned, run=None), record.during_run), []
    record.forget_old_drops(now)
    return True


def raised_count(job: Job, how: RetryLater) -> dict[str, int]:
    name = {"error": "retries", "timeout": "timeouts", "stall": "stalls"}[how.cause]
    return {name: getattr(job, name) + 1}


def finish(queues: Queues, queue: Queue, id: str, end: End, revision: int, now: int) -> FinishStatus | OneOf:
    """End a handed-off run by a revision in its range."""
    record = queue.record(id)
    outcome = record.outcome
    if outcome is None or not outcome.first <= revision <= outcome.revision:
        return finish_current(queues, queue, record, end, revision, now)
    told: FinishStatus = "done" if end_kind(end) == outcome.kind else "lost"
    if record.live_outcome(now):
        return told
    return OneOf((told, finish_current(queues, queue, record, end, revision, now)))


def finish_current(
    queues: Queues, queue: Queue, record: IdRecord, end: End, revision: int, now: int
) -> FinishStatus:
    job = record.current
    if job is None:
        return "not_found"
    if not job.first <= revision <= job.revision:
        return "lost"
    if job.run is None or job.run.lease is not None:
        return "refused"
    end_run(queues, queue, record, end, now)
    return "done"
