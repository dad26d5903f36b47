"""How the oracle ends a run, or returns its job to the queue: for settle, finish, cancel, drop and reap."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dibs.model.error_text import to_storable_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import FAIL_SUFFIX, EndKind, Error, Job, JobData, Origin, Outcome, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    Release,
    RetryLater,
    SettleAction,
)
from dibs_conformance.oracle.enqueueing import enqueue, enqueue_fail_job, resolve_time
from dibs_conformance.oracle.ids import IdRecord, replay
from dibs_conformance.oracle.queue import Oracle, OracleQueue


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


def end_run(oracle: Oracle, queue: OracleQueue, record: IdRecord, action: End, now: int) -> None:
    """End the run, promote the successor, then enqueue the follow-ups and the fail job."""
    job = record.joined()
    match action:
        case Complete():
            end_current(queue, record, "completed", now, result=action.result, given=action.retention)
            enqueue_follow_ups(oracle, action.then, now)
        case Fail():
            error = to_storable_error(action.error)
            end_current(queue, record, "failed", now, error=error, given=action.retention)
            if queue.settings.fail_handler and not queue.name.endswith(FAIL_SUFFIX):
                fail_queue = oracle.queue(queue.name + FAIL_SUFFIX)
                enqueue_fail_job(fail_queue, job.data.payload, make_origin(queue, job, error), now)
            enqueue_follow_ups(oracle, action.then, now)
        case Cancelled():
            reason = None if action.error is None else to_storable_error(action.error)
            end_current(queue, record, "cancelled", now, error=reason, given=action.retention)


def enqueue_follow_ups(oracle: Oracle, then: Iterable[FollowUp], now: int) -> None:
    for item in then:
        enqueue(oracle.queue(item.queue), EnqueueRequest(job=item.job, on_conflict=item.on_conflict), now)


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
