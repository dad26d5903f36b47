"""The verbs settle, finish and report: a run ends, returns its job to waiting, or stores what it reports."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.error_text import to_storable_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import EMPTY, FAIL_SUFFIX, FOREVER, Error, Job, OutcomeRetention, Slot
from dibs.model.limits import LIMITS, Limits
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
from dibs.storage.indexed.ending import store_end
from dibs.storage.indexed.enqueueing import enqueue_follow_ups
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def settle(index: Index, queue: str, settlements: Sequence[Settlement], limits: Limits) -> list[SettleResult]:
    """Settle runs in order. A settlement counts only if its fence is that of the active run."""
    source = index.find_queue(queue)
    return [_settle(index, source, one, limits) for one in settlements]


def _settle(index: Index, queue: QueueIndex, settlement: Settlement, limits: Limits) -> SettleResult:
    slot = queue.slots.get(settlement.id, EMPTY)
    job, decision = slot.current, rules.decide_settle(slot, settlement, limits)
    if settlement.cost is not None and not isinstance(decision, SettleResult):
        _charge_cost(queue, job, settlement.cost)
    # Test for Complete first: most settlements complete, and an isinstance that fails costs five times as
    # much as one that succeeds.
    if isinstance(decision, Complete) and job is not None:
        end(index, queue, slot, job, decision)
        return rules.DONE
    if isinstance(decision, SettleResult):
        return decision
    _apply_action(index, queue, slot, decision)
    return rules.settle_result(slot, settlement.action, decision)


def _charge_cost(queue: QueueIndex, job: Job | None, cost: int) -> None:
    """Move the clocks by the cost of a run, if it is under a lease. A later put of its slot opens its key."""
    if job is not None and job.run is not None and job.run.lease is not None:
        queue.charge_cost(job.data.key, cost)


def _apply_action(index: Index, queue: QueueIndex, slot: Slot, action: SettleAction) -> None:
    """Apply an action that the rules accepted to the active run of a slot."""
    job = slot.current
    assert job is not None and job.run is not None, "the caller found an active run"  # noqa: S101, PT018
    if isinstance(action, (Complete, Fail, Cancelled)):
        end(index, queue, slot, job, action)
    elif isinstance(action, RetryLater):
        _retry_later(index, queue, slot, job, action)
    elif isinstance(action, HandOff):
        queue.put(job.id, transitions.hand_off(slot, job, job.run))
        if queue.settings.log_level == "all":
            index.log_event(queue, events.note_event("handed_off", job.id, index.now, job))
    else:
        _release(index, queue, slot, job, action)


def _retry_later(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: RetryLater) -> None:
    now = index.now
    run_at = action.run_at if action.run_at is not None else now + (action.delay or 0)
    error = to_storable_error(action.error) if action.error is not None else None
    queue.put(job.id, transitions.retry(slot, job, action.cause, run_at, index.next_number(), error))
    if queue.settings.log_level != "off":
        index.log_event(queue, events.attempt_event(KIND_OF_CAUSE[action.cause], job, now, error))


def _release(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: Release) -> None:
    queue.put(job.id, transitions.release_by(slot, job, action, index.now, index.next_number))
    if queue.settings.log_level != "off":
        index.log_event(queue, events.attempt_event("released", job, index.now))


def return_job(index: Index, queue: QueueIndex, id: str, *, stalled: bool) -> ReapedKind:
    """Take an active job away from its lease, and return the kind of event that this is for the job.

    The job waits again, or ends as cancelled if its cancellation was requested.
    """
    slot = queue.slots[id]
    assert slot.current is not None, "a lease holds active jobs"  # noqa: S101
    action, kind = rules.decide_action_without_lease(slot.current, stalled=stalled)
    _apply_action(index, queue, slot, action)
    return kind


def end(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: End) -> None:
    """End the job of a slot, in one step with all that follows from it.

    The outcome is stored, the successor becomes the waiting job, and the fail job and the follow-ups are
    enqueued.
    """
    if not isinstance(action, Complete):
        action = _to_storable_end(queue, action)
    job = store_end(index, queue, slot, job, action)
    if isinstance(action, Fail) and _has_fail_handler(queue):
        _enqueue_fail_job(index, queue, job, action.error)
    if isinstance(action, (Complete, Fail)) and action.then:
        enqueue_follow_ups(index, action.then)


def _has_fail_handler(queue: QueueIndex) -> bool:
    return queue.settings.fail_handler and not queue.name.endswith(FAIL_SUFFIX)


def _to_storable_end(queue: QueueIndex, action: Fail | Cancelled) -> Fail | Cancelled:
    """Return the action with its error cut to the size limit. In a fail queue, a failure never expires."""
    if isinstance(action, Cancelled):
        return replace(action, error=to_storable_error(action.error)) if action.error is not None else action
    retention = action.retention
    if queue.name.endswith(FAIL_SUFFIX):
        retention = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
    return replace(action, error=to_storable_error(action.error), retention=retention)


def _enqueue_fail_job(index: Index, queue: QueueIndex, job: Job, error: Error) -> None:
    number, into = index.next_number(), index.queue(queue.name + FAIL_SUFFIX)
    fail_job = transitions.make_fail_job(queue.name, job, error, f"{number:016x}", index.now, number)
    into.put(fail_job.id, Slot(fail_job))
    if into.settings.log_level == "all":
        index.log_event(into, events.note_event("queued", fail_job.id, index.now, fail_job))


def finish(index: Index, queue: str, id: str, action: End, revision: int) -> FinishStatus:
    """End a handed-off run, which its id and one of its revisions name instead of a fence."""
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    decision = rules.decide_finish(slot, action, revision)
    if decision is not None or slot.current is None:
        return decision or "not_found"
    end(index, source, slot, slot.current, action)
    return "done"


def report(
    index: Index,
    queue: str,
    id: str,
    fence: int,
    progress: bytes | None,
    memo: bytes | None,
    *,
    chunks: tuple[bytes, ...] = (),
    limits: Limits = LIMITS,
) -> ReportStatus:
    """Store what the active run with this fence reports; `lost` if there is no such run."""
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    job = slot.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    if progress is not None or memo is not None:
        source.put(id, transitions.report(slot, job, job.run, progress, memo))
    if chunks:
        event = events.output_event(job, job.run, index.now)
        report = output.reported(index.next_number(), event, chunks)
        source.put_output(id, output.append(source.outputs.get(id), report, limits.output))
    if progress is not None or chunks:
        source.put_reported([id])
    return "reported"
