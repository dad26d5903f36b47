"""The oracle's implementation of settle and finish, which end a run or return its job to the queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.check_jobs import check_follow_ups
from dibs.model.error_text import to_storable_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import FAIL_SUFFIX, EndKind, Error, Job, JobData, Origin, Outcome, OutcomeRetention
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
from dibs_conformance.oracle.queue import OracleQueue


class Queues(Protocol):
    """The queues of the oracle by name. An end may enqueue jobs in other queues."""

    def queue(self, name: str) -> OracleQueue: ...


def settle(queues: Queues, queue: OracleQueue, settlement: Settlement, now: int) -> SettleResult | OneOf:
    """Apply a settlement if the run with its fence is active. Return OneOf where two results are correct."""
    record, action = queue.record(settlement.id), settlement.action
    job = record.current
    if job is None or job.run is None or job.run.fence != settlement.fence:
        return repeated_result(record, settlement.fence, action, now)
    if isinstance(action, Complete | Fail | Cancelled):
        return check_limits(action) or end_run(queues, queue, record, action, now)
    if isinstance(action, HandOff):
        return hand_off(queue, record, job, now)
    if job.run.lease is None or (action.run_at is not None and action.delay is not None):
        return SettleResult("refused")
    return return_run(queue, record, action, now)


def repeated_result(record: IdRecord, fence: int, action: SettleAction, now: int) -> SettleResult | OneOf:
    """Return the result of a settlement for a run that is no longer active.

    If the outcome has this fence, a repeat of the same end gets its first result again. After the expiry of
    the outcome, `lost` is correct, too, because prune may have removed the outcome.
    """
    outcome = record.outcome
    lost = SettleResult("lost")
    if outcome is None or outcome.fence != fence or not fence:
        return lost
    if end_kind(action) == outcome.kind:
        result = SettleResult("done")
    elif end_kind(action) is None and outcome.kind == "cancelled":
        result = SettleResult("cancelled")
    else:
        return lost
    return result if record.live_outcome(now) else OneOf((result, lost))


def end_kind(action: SettleAction) -> EndKind | None:
    match action:
        case Complete():
            return "completed"
        case Fail():
            return "failed"
        case Cancelled():
            return "cancelled"
        case _:
            return None


def check_limits(action: End) -> SettleResult | None:
    """Return the result `refused` if the action's result or a follow-up breaks a limit, else None."""
    try:
        check_follow_ups(() if isinstance(action, Cancelled) else action.then)
    except Refused:
        return SettleResult("refused")
    large = isinstance(action, Complete) and action.result is not None and len(action.result) > LIMITS.result
    return SettleResult("refused") if large else None


def end_run(queues: Queues, queue: OracleQueue, record: IdRecord, action: End, now: int) -> SettleResult:
    """End the run, promote the successor, then enqueue the follow-ups and the fail job."""
    job = record.joined()
    match action:
        case Complete():
            end_current(queue, record, "completed", now, result=action.result, given=action.retention)
            enqueue_follow_ups(queues, action.then, now)
        case Fail():
            error = to_storable_error(action.error)
            end_current(queue, record, "failed", now, error=error, given=action.retention)
            if queue.settings.fail_handler and not queue.name.endswith(FAIL_SUFFIX):
                fail_queue = queues.queue(queue.name + FAIL_SUFFIX)
                enqueue_fail_job(fail_queue, job.data.payload, make_origin(queue, job, error), now)
            enqueue_follow_ups(queues, action.then, now)
        case Cancelled():
            reason = None if action.error is None else to_storable_error(action.error)
            end_current(queue, record, "cancelled", now, error=reason, given=action.retention)
    return SettleResult("done")


def enqueue_follow_ups(queues: Queues, then: Iterable[FollowUp], now: int) -> None:
    for item in then:
        enqueue(queues.queue(item.queue), EnqueueRequest(job=item.job, on_conflict=item.on_conflict), now)


def make_origin(queue: OracleQueue, job: Job, error: Error) -> Origin:
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
        run_at=job.run_at,
        attributes=job.data.attributes,
    )


def end_current(
    queue: OracleQueue,
    record: IdRecord,
    kind: EndKind,
    now: int,
    *,
    result: bytes | None = None,
    error: Error | None = None,
    given: OutcomeRetention | None = None,
) -> None:
    """End the current job: store its outcome, and make the successor the current job, if it creates one."""
    job = record.joined()
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
        data=kept_data(kind, job) if keeps else None,
        origin=job.origin,
        attributes={} if keeps else job.data.attributes,
        progress=job.run.progress if job.run else None,
    )
    queue.log_attempt_end(kind, job, now, error, result)
    record.current, record.during_run = record.heir(), []
    if record.current is not None:
        queue.log_event("promoted", job.id, now, record.current)
    record.forget_old_drops(now)


def kept_data(kind: EndKind, job: Job) -> JobData:
    """Return the data that an outcome keeps. Only a failed job can run again, and needs its memo."""
    return job.data if kind == "failed" else replace(job.data, memo=None)


def hand_off(queue: OracleQueue, record: IdRecord, job: Job, now: int) -> SettleResult:
    """Remove the run from its lease. If its cancellation was requested, end the run as cancelled instead."""
    assert job.run is not None  # noqa: S101 - the caller checked it
    if job.run.lease is None:
        return SettleResult("handed_off", revision=job.revision)
    if job.run.cancel_requested:
        end_current(queue, record, "cancelled", now)
        return SettleResult("cancelled")
    record.current = replace(job, run=replace(job.run, lease=None))
    queue.log_event("handed_off", job.id, now, job)
    return SettleResult("handed_off", revision=job.revision)


def return_run(queue: OracleQueue, record: IdRecord, action: SettleAction, now: int) -> SettleResult:
    assert isinstance(action, RetryLater | Release)  # noqa: S101 - the caller handled the others
    if not return_to_waiting(queue, record, action, now):
        return SettleResult("cancelled")
    return SettleResult("returned")


def return_to_waiting(queue: OracleQueue, record: IdRecord, action: RetryLater | Release, now: int) -> bool:
    """Make the active job wait again, and apply the enqueues and amendments during its run to it.

    If its cancellation was requested, end the run as cancelled instead, and return False.
    """
    job = record.current
    assert job is not None  # noqa: S101 - the caller checked it
    assert job.run is not None  # noqa: S101
    if job.run.cancel_requested:
        end_current(queue, record, "cancelled", now)
        return False
    if isinstance(action, Release):
        queue.log_attempt_end("released", job, now)
        returned = replace(job, attempts=job.attempts - 1)
        if action.run_at is not None or action.delay is not None:
            at = resolve_time(action.run_at, action.delay, now)
            returned = replace(returned, seq=queue.numbers.draw(), run_at=at)
    else:
        error = None if action.error is None else to_storable_error(action.error)
        queue.log_attempt_end(KIND_OF_CAUSE[action.cause], job, now, error)
        returned = replace(job, seq=queue.numbers.draw(), error=error or job.error)
        returned = replace(
            returned, run_at=resolve_time(action.run_at, action.delay, now), **increment_count(job, action)
        )
    record.current, record.during_run = replay(replace(returned, run=None), record.during_run), []
    record.forget_old_drops(now)
    return True


def increment_count(job: Job, action: RetryLater) -> dict[str, int]:
    name = {"error": "retries", "timeout": "timeouts", "stall": "stalls"}[action.cause]
    return {name: getattr(job, name) + 1}


def finish(
    queues: Queues, queue: OracleQueue, id: str, end: End, revision: int, now: int
) -> FinishStatus | OneOf:
    """End the handed-off run of the enqueue with this revision. It is found by id, without its fence."""
    record = queue.record(id)
    outcome = record.outcome
    if outcome is None or not outcome.first <= revision <= outcome.revision:
        return finish_current(queues, queue, record, end, revision, now)
    result: FinishStatus = "done" if end_kind(end) == outcome.kind else "lost"
    if record.live_outcome(now):
        return result
    return OneOf((result, finish_current(queues, queue, record, end, revision, now)))


def finish_current(
    queues: Queues, queue: OracleQueue, record: IdRecord, end: End, revision: int, now: int
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
