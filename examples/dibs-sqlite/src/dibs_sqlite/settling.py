"""Verbs that end runs or send them back."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.error_text import checked_error
from dibs.model.job import FAIL_SUFFIX, FOREVER, Error, Job, OutcomeRetention, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, Complete, End, Fail, HandOff, RetryLater, SettleAction, Settlement
from dibs.model.results import FinishStatus, ReapedKind, ReportStatus, SettleResult
from dibs_sqlite.enqueueing import follow
from dibs_sqlite.step import Queue, Step


def settle(step: Step, name: str, settlements: Sequence[Settlement], limits: Limits) -> list[SettleResult]:
    """Settle runs, in order."""
    queue = step.queue(name)
    return [_settle(step, queue, one, limits) for one in settlements]


def _settle(step: Step, queue: Queue, one: Settlement, limits: Limits) -> SettleResult:
    slot = queue.get(one.id)
    verdict = rules.settle(slot, one, limits)
    if isinstance(verdict, SettleResult):
        return verdict
    _apply(step, queue, slot, verdict)
    return rules.settle_result(slot, one.how, verdict)


def _apply(step: Step, queue: Queue, slot: Slot, how: SettleAction) -> None:
    job = slot.current
    assert job is not None and job.run is not None, "only runs are settled"  # noqa: S101, PT018
    if isinstance(how, (Complete, Fail, Cancelled)):
        end(step, queue, slot, job, how)
    elif isinstance(how, RetryLater):
        _retry(step, queue, slot, job, how)
    elif isinstance(how, HandOff):
        queue.put(job.id, slot, transitions.hand_off(slot, job, job.run))
        queue.tell(events.note_event("handed_off", job.id, step.now, job))
    else:
        queue.put(job.id, slot, transitions.release(slot, job))
        queue.tell(events.attempt_event("released", job, step.now))


def _retry(step: Step, queue: Queue, slot: Slot, job: Job, how: RetryLater) -> None:
    run_at = how.run_at if how.run_at is not None else step.now + (how.delay or 0)
    error = checked_error(how.error) if how.error is not None else None
    queue.put(job.id, slot, transitions.retry(slot, job, how.cause, run_at, step.draw(), error))
    queue.tell(events.attempt_event(events.KIND_OF_CAUSE[how.cause], job, step.now, error))


def give_back(step: Step, queue: Queue, id: str, *, stalled: bool) -> tuple[int, ReapedKind]:
    """Take an active job from its lease; return its fence, and what it came to."""
    slot = queue.get(id)
    assert slot.current is not None and slot.current.run is not None, "a lease holds active jobs"  # noqa: S101, PT018
    how, kind = rules.action_for_return(slot.current, stalled=stalled)
    _apply(step, queue, slot, how)
    return slot.current.run.fence, kind


def end(step: Step, queue: Queue, slot: Slot, job: Job, how: End) -> None:
    """End a current: outcome, promotion, fail job and follow-ups, all in this transaction."""
    if isinstance(how, Fail):
        how = _as_kept(queue, how)
    after = transitions.end(slot, job, how, step.now, queue.settings.retention)
    queue.put(job.id, slot, after)
    error = how.error if isinstance(how, Fail) else None
    queue.tell(events.attempt_event(transitions.outcome_kind(how), job, step.now, error))
    if after.current is not None:
        queue.tell(events.note_event("promoted", job.id, step.now, after.current))
    if isinstance(how, Fail) and how.handled and not queue.name.endswith(FAIL_SUFFIX):
        _hand_to_failure(step, queue, job, how.error)
    if not isinstance(how, Cancelled):
        follow(step, how.then)


def _as_kept(queue: Queue, how: Fail) -> Fail:
    """Return the end with its error cut; what fails for good in a fail queue is kept for ever."""
    retention = how.retention
    if queue.name.endswith(FAIL_SUFFIX):
        retention = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
    return replace(how, error=checked_error(how.error), retention=retention)


def _hand_to_failure(step: Step, queue: Queue, job: Job, error: Error) -> None:
    number, into = step.draw(), step.queue(queue.name + FAIL_SUFFIX)
    fail_job = transitions.fail_job(queue.name, job, error, f"{number:016x}", step.now, number)
    into.put(fail_job.id, into.get(fail_job.id), Slot(fail_job))
    into.tell(events.note_event("queued", fail_job.id, step.now, fail_job))


def finish(step: Step, name: str, id: str, how: End, revision: int) -> FinishStatus:
    """End a handed-off run from elsewhere."""
    queue = step.queue(name)
    slot = queue.get(id)
    verdict = rules.finish(slot, how, revision)
    if verdict is not None or slot.current is None:
        return verdict or "not_found"
    end(step, queue, slot, slot.current, how)
    return "done"


def report(step: Step, name: str, id: str, fence: int, progress: bytes) -> ReportStatus:
    """Keep the progress of an active run."""
    queue = step.queue(name)
    slot = queue.get(id)
    job = slot.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    queue.put(id, slot, transitions.report(slot, job, job.run, progress))
    return "reported"
