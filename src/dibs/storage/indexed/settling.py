"""Verbs that end runs or send them back."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.error_text import checked_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import EMPTY, FAIL_SUFFIX, FOREVER, Error, Job, OutcomeRetention, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, Complete, End, Fail, HandOff, RetryLater, SettleAction, Settlement
from dibs.model.results import FinishStatus, ReapedKind, ReportStatus, SettleResult
from dibs.storage.indexed.enqueueing import follow
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def settle(index: Index, queue: str, settlements: Sequence[Settlement], limits: Limits) -> list[SettleResult]:
    """Settle runs, in order."""
    source = index.find_queue(queue)
    return [_settle(index, source, one, limits) for one in settlements]


def _settle(index: Index, queue: QueueIndex, one: Settlement, limits: Limits) -> SettleResult:
    slot = queue.slots.get(one.id, EMPTY)
    job, verdict = slot.current, rules.settle(slot, one, limits)
    # Most are, and to tell what a Struct is not costs five times as much.
    if isinstance(verdict, Complete) and job is not None:
        end(index, queue, slot, job, verdict)
        return rules.DONE
    if isinstance(verdict, SettleResult):
        return verdict
    _apply(index, queue, slot, verdict)
    return rules.settle_result(slot, one.action, verdict)


def _apply(index: Index, queue: QueueIndex, slot: Slot, how: SettleAction) -> None:
    """Let an active run go on like this."""
    job = slot.current
    assert job is not None and job.run is not None, "only runs are settled"  # noqa: S101, PT018
    if isinstance(how, (Complete, Fail, Cancelled)):
        end(index, queue, slot, job, how)
    elif isinstance(how, RetryLater):
        _retry(index, queue, slot, job, how)
    elif isinstance(how, HandOff):
        queue.put(job.id, transitions.hand_off(slot, job, job.run))
        if queue.settings.log_level == "all":
            index.log_event(queue, events.note_event("handed_off", job.id, index.now, job))
    else:
        _release(index, queue, slot, job)


def _retry(index: Index, queue: QueueIndex, slot: Slot, job: Job, how: RetryLater) -> None:
    now = index.now
    run_at = how.run_at if how.run_at is not None else now + (how.delay or 0)
    error = checked_error(how.error) if how.error is not None else None
    queue.put(job.id, transitions.retry(slot, job, how.cause, run_at, index.next_number(), error))
    if queue.settings.log_level != "off":
        index.log_event(queue, events.attempt_event(KIND_OF_CAUSE[how.cause], job, now, error))


def _release(index: Index, queue: QueueIndex, slot: Slot, job: Job) -> None:
    queue.put(job.id, transitions.release(slot, job))
    if queue.settings.log_level != "off":
        index.log_event(queue, events.attempt_event("released", job, index.now))


def give_back(index: Index, queue: QueueIndex, id: str, *, stalled: bool) -> ReapedKind:
    """Take an active job from its lease: back to waiting, or to its end if it was asked to cancel."""
    slot = queue.slots[id]
    assert slot.current is not None, "a lease holds active jobs"  # noqa: S101
    how, kind = rules.action_for_return(slot.current, stalled=stalled)
    _apply(index, queue, slot, how)
    return kind


def end(index: Index, queue: QueueIndex, slot: Slot, job: Job, how: End) -> None:
    """End a current: outcome, promotion, fail job and follow-ups, all in this step."""
    now, level, failed = index.now, queue.settings.log_level, None
    if not isinstance(how, (Complete, Cancelled)):
        how = failed = _as_kept(queue, how)
    after = transitions.end(slot, job, how, now, queue.settings.retention)
    queue.put(job.id, after)
    if level != "off":
        error = None if failed is None else failed.error
        index.log_event(queue, events.attempt_event(transitions.outcome_kind(how), job, now, error))
        if level == "all" and after.current is not None:
            index.log_event(queue, events.note_event("promoted", job.id, now, after.current))
    if failed is not None and failed.handled and not queue.name.endswith(FAIL_SUFFIX):
        _hand_to_failure(index, queue, job, failed.error)
    if isinstance(how, (Complete, Fail)) and how.then:
        follow(index, how.then)


def _as_kept(queue: QueueIndex, how: Fail) -> Fail:
    """Return the end with its error cut; what fails for good in a fail queue is kept for ever."""
    retention = how.retention
    if queue.name.endswith(FAIL_SUFFIX):
        retention = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
    return replace(how, error=checked_error(how.error), retention=retention)


def _hand_to_failure(index: Index, queue: QueueIndex, job: Job, error: Error) -> None:
    number, into = index.next_number(), index.queue(queue.name + FAIL_SUFFIX)
    fail_job = transitions.fail_job(queue.name, job, error, f"{number:016x}", index.now, number)
    into.put(fail_job.id, Slot(fail_job))
    if into.settings.log_level == "all":
        index.log_event(into, events.note_event("queued", fail_job.id, index.now, fail_job))


def finish(index: Index, queue: str, id: str, how: End, revision: int) -> FinishStatus:
    """End a handed-off run from elsewhere."""
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    verdict = rules.finish(slot, how, revision)
    if verdict is not None or slot.current is None:
        return verdict or "not_found"
    end(index, source, slot, slot.current, how)
    return "done"


def report(index: Index, queue: str, id: str, fence: int, progress: bytes) -> ReportStatus:
    """Keep the progress of an active run."""
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    job = slot.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    source.put(id, transitions.report(slot, job, job.run, progress))
    return "reported"
