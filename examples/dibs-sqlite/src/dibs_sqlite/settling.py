"""The methods settle, finish and report: a run ends, returns its job to waiting, or stores a report."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.error_text import to_storable_error
from dibs.model.job import FAIL_SUFFIX, FOREVER, Error, Job, OutcomeRetention, Slot
from dibs.model.limits import Limits
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    Fail,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import FinishStatus, ReapedKind, ReportStatus, SettleResult
from dibs.storage.indexed import output
from dibs_sqlite import limits as limits_by_key
from dibs_sqlite.ending import store_end
from dibs_sqlite.enqueueing import enqueue_follow_ups
from dibs_sqlite.transaction import QueueRows, Transaction

#: Progress, memo and chunks of output.
Reported = tuple[bytes | None, bytes | None, Sequence[bytes]]


def settle(
    tx: Transaction, name: str, settlements: Sequence[Settlement], limits: Limits
) -> list[SettleResult]:
    """Settle runs in order. A settlement counts only if its fence is that of the active run."""
    queue = tx.queue(name)
    return [_settle(tx, queue, settlement, limits) for settlement in settlements]


def _settle(tx: Transaction, queue: QueueRows, settlement: Settlement, limits: Limits) -> SettleResult:
    slot = queue.get(settlement.id)
    verdict = rules.decide_settle(slot, settlement, limits)
    if isinstance(verdict, SettleResult):
        return verdict
    job = slot.current
    if settlement.cost is not None and job is not None and job.run is not None and job.run.lease is not None:
        limits_by_key.charge_cost(tx, queue, job, settlement.cost)
    _apply_action(tx, queue, slot, verdict)
    return rules.settle_result(slot, settlement.action, verdict)


def _apply_action(tx: Transaction, queue: QueueRows, slot: Slot, how: SettleAction) -> None:
    job = slot.current
    assert job is not None and job.run is not None, "rules.decide_settle allows only active runs"  # noqa: S101, PT018
    if isinstance(how, (Complete, Fail, Cancelled)):
        end(tx, queue, slot, job, how)
    elif isinstance(how, RetryLater):
        _retry_later(tx, queue, slot, job, how)
    elif isinstance(how, HandOff):
        queue.put(job.id, slot, transitions.hand_off(slot, job, job.run))
        queue.log_event(events.note_event("handed_off", job.id, tx.now, job))
    else:
        _release(tx, queue, slot, job, how)


def _retry_later(tx: Transaction, queue: QueueRows, slot: Slot, job: Job, how: RetryLater) -> None:
    run_at = how.run_at if how.run_at is not None else tx.now + (how.delay or 0)
    error = to_storable_error(how.error) if how.error is not None else None
    queue.put(job.id, slot, transitions.retry(slot, job, how.cause, run_at, tx.draw(), error))
    queue.log_event(events.attempt_event(events.KIND_OF_CAUSE[how.cause], job, tx.now, error))


def _release(tx: Transaction, queue: QueueRows, slot: Slot, job: Job, how: Release) -> None:
    queue.put(job.id, slot, transitions.release_by(slot, job, how, tx.now, tx.draw))
    queue.log_event(events.attempt_event("released", job, tx.now))


def return_job(tx: Transaction, queue: QueueRows, id: str, *, stalled: bool) -> tuple[int, ReapedKind]:
    """Take a job away from its lease: it waits again, or ends if its cancellation was requested.

    Return the fence of the run, and whether the job was stalled, released or cancelled.
    """
    slot = queue.get(id)
    assert slot.current is not None and slot.current.run is not None, "a lease holds active jobs"  # noqa: S101, PT018
    how, kind = rules.decide_action_without_lease(slot.current, stalled=stalled)
    _apply_action(tx, queue, slot, how)
    return slot.current.run.fence, kind


def end(tx: Transaction, queue: QueueRows, slot: Slot, job: Job, how: End) -> None:
    """End a job, in one step with all that follows from it.

    The outcome is stored, the successor becomes the waiting job, and the fail job and the follow-ups are
    enqueued.
    """
    if not isinstance(how, Complete):
        how = _to_storable_end(queue, how)
    ended = store_end(tx, queue, slot, job, how)
    if isinstance(how, Fail) and queue.settings.fail_handler and not queue.name.endswith(FAIL_SUFFIX):
        _enqueue_fail_job(tx, queue, ended, how.error)
    if not isinstance(how, Cancelled):
        enqueue_follow_ups(tx, how.then)


def _to_storable_end(queue: QueueRows, how: Fail | Cancelled) -> Fail | Cancelled:
    """Return the end with its error cut to the size limit. Failures of a fail queue never expire."""
    if isinstance(how, Cancelled):
        return how if how.error is None else replace(how, error=to_storable_error(how.error))
    retention = how.retention
    if queue.name.endswith(FAIL_SUFFIX):
        retention = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
    return replace(how, error=to_storable_error(how.error), retention=retention)


def _enqueue_fail_job(tx: Transaction, queue: QueueRows, job: Job, error: Error) -> None:
    number, fail_queue = tx.draw(), tx.queue(queue.name + FAIL_SUFFIX)
    fail_job = transitions.make_fail_job(queue.name, job, error, f"{number:016x}", tx.now, number)
    fail_queue.put(fail_job.id, fail_queue.get(fail_job.id), Slot(fail_job))
    fail_queue.log_event(events.note_event("queued", fail_job.id, tx.now, fail_job))


def finish(tx: Transaction, name: str, id: str, how: End, revision: int) -> FinishStatus:
    """End a handed-off run, which its id and one of its revisions name instead of a fence."""
    queue = tx.queue(name)
    slot = queue.get(id)
    verdict = rules.decide_finish(slot, how, revision)
    if verdict is not None or slot.current is None:
        return verdict or "not_found"
    end(tx, queue, slot, slot.current, how)
    return "done"


def report(
    tx: Transaction, name: str, id: str, fence: int, reported: Reported, limits: Limits
) -> ReportStatus:
    """Store what the active run with this fence reports; `lost` if there is no such run."""
    progress, memo, chunks = reported
    queue = tx.queue(name)
    slot = queue.get(id)
    job = slot.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    if progress is not None or memo is not None:
        queue.put(id, slot, transitions.report(slot, job, job.run, progress, memo))
    if chunks:
        event = events.output_event(job, job.run, tx.now)
        report = output.reported(tx.draw(), event, tuple(map(bytes, chunks)))
        queue.put_output(id, output.append(queue.output(id), report, limits.output))
    if progress is not None or chunks:
        queue.mark_reported(id)
    return "reported"
