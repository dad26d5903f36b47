"""Verbs that end runs or send them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model import events, transitions
from dibs.model.answers import FinishStatus, ReapedKind, ReportStatus, Settled
from dibs.model.arguments import check_how
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import EMPTY, FAIL_SUFFIX, FOREVER, Error, Job, Outcome, Retention, Run, Slot
from dibs.model.limits import Limits, checked_error
from dibs.model.requests import Cancelled, Complete, End, Fail, HandOff, How, Release, Retry, Settlement
from dibs.storage.indexed.enqueueing import follow
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex

DONE: Final = Settled("done")
RETURNED: Final = Settled("returned")
LOST: Final = Settled("lost")
CANCELLED: Final = Settled("cancelled")


def settle(index: Index, queue: str, settlements: Sequence[Settlement], limits: Limits) -> list[Settled]:
    """Settle runs, in order."""
    source = index.look(queue)
    return [_settle(index, source, one, limits) for one in settlements]


def _settle(index: Index, queue: QueueIndex, one: Settlement, limits: Limits) -> Settled:
    slot = queue.slots.get(one.id, EMPTY)
    job = slot.current
    run = None if job is None else job.run
    if job is None or run is None or run.fence != one.fence:
        return _remembered(slot.outcome, one)
    try:
        check_how(one.how, limits)
    except Refused as refused:
        return Settled("refused", str(refused))
    how = one.how
    if isinstance(how, (Complete, Fail, Cancelled)):
        end(index, queue, slot, job, how)
        return DONE
    return _return(index, queue, slot, job, run, how)


def _remembered(outcome: Outcome | None, one: Settlement) -> Settled:
    """Answer a settlement whose run is not active: a repeat hears what the first one heard."""
    if outcome is None or outcome.fence != one.fence or outcome.fence == 0:
        return LOST
    if isinstance(one.how, (Complete, Fail, Cancelled)):
        return DONE if transitions.kind_of(one.how) == outcome.kind else LOST
    return CANCELLED if outcome.kind == "cancelled" else LOST


def _return(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: Run, how: How) -> Settled:
    if run.lease is None:
        if isinstance(how, HandOff):
            return Settled("handed_off", revision=job.revision)
        return Settled("refused", "a handed-off run can only end")
    if run.cancel_requested:
        end(index, queue, slot, job, Cancelled())
        return CANCELLED
    if isinstance(how, HandOff):
        queue.put(job.id, transitions.hand_off(slot, job, run))
        if queue.settings.log_level == "all":
            index.tell(queue, events.noted("handed_off", job.id, index.now, job))
        return Settled("handed_off", revision=job.revision)
    if isinstance(how, Retry):
        _retry(index, queue, slot, job, how)
    else:
        assert isinstance(how, Release)  # noqa: S101 - the ends were told apart before
        _release(index, queue, slot, job)
    return RETURNED


def _retry(index: Index, queue: QueueIndex, slot: Slot, job: Job, how: Retry) -> None:
    now = index.now
    run_at = how.run_at if how.run_at is not None else now + (how.delay or 0)
    error = checked_error(how.error) if how.error is not None else None
    queue.put(job.id, transitions.retry(slot, job, how.cause, run_at, index.draw(), error))
    if queue.settings.log_level != "off":
        index.tell(queue, events.attempt_ended(KIND_OF_CAUSE[how.cause], job, now, error))


def _release(index: Index, queue: QueueIndex, slot: Slot, job: Job) -> None:
    queue.put(job.id, transitions.release(slot, job))
    if queue.settings.log_level != "off":
        index.tell(queue, events.attempt_ended("released", job, index.now))


def give_back(index: Index, queue: QueueIndex, id: str, *, stalled: bool) -> ReapedKind:
    """Take an active job from its lease: back to waiting, or to its end if it was asked to cancel."""
    slot = queue.slots[id]
    job = slot.current
    assert job is not None and job.run is not None, "a lease holds active jobs"  # noqa: S101, PT018
    if job.run.cancel_requested:
        end(index, queue, slot, job, Cancelled())
        return "cancelled"
    if stalled:
        _retry(index, queue, slot, job, Retry(cause="stall"))
        return "stalled"
    _release(index, queue, slot, job)
    return "released"


def end(index: Index, queue: QueueIndex, slot: Slot, job: Job, how: End) -> None:
    """End a current: outcome, promotion, fail job and follow-ups, all in this step."""
    now, level = index.now, queue.settings.log_level
    if isinstance(how, Fail):
        how = _as_kept(queue, how)
    after = transitions.end(slot, job, how, now, queue.settings.retention)
    queue.put(job.id, after)
    if level != "off":
        error = how.error if isinstance(how, Fail) else None
        index.tell(queue, events.attempt_ended(transitions.kind_of(how), job, now, error))
        if level == "all" and after.current is not None:
            index.tell(queue, events.noted("promoted", job.id, now, after.current))
    if isinstance(how, Fail) and how.handled and not queue.name.endswith(FAIL_SUFFIX):
        _hand_to_failure(index, queue, job, how.error)
    if not isinstance(how, Cancelled) and how.then:
        follow(index, how.then)


def _as_kept(queue: QueueIndex, how: Fail) -> Fail:
    """Return the end with its error cut; what fails for good in a fail queue is kept for ever."""
    retention = how.retention
    if queue.name.endswith(FAIL_SUFFIX):
        retention = Retention(failed=FOREVER, keep_payload=("failed",))
    return replace(how, error=checked_error(how.error), retention=retention)


def _hand_to_failure(index: Index, queue: QueueIndex, job: Job, error: Error) -> None:
    number, into = index.draw(), index.queue(queue.name + FAIL_SUFFIX)
    fail_job = transitions.fail_job(queue.name, job, error, f"{number:016x}", index.now, number)
    into.put(fail_job.id, Slot(fail_job))
    if into.settings.log_level == "all":
        index.tell(into, events.noted("queued", fail_job.id, index.now, fail_job))


def finish(index: Index, queue: str, id: str, how: End, revision: int) -> FinishStatus:
    """End a handed-off run from elsewhere."""
    source = index.look(queue)
    slot = source.slots.get(id, EMPTY)
    outcome, job = slot.outcome, slot.current
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return "done" if transitions.kind_of(how) == outcome.kind else "lost"
    if job is None:
        return "not_found"
    if not job.first <= revision <= job.revision:
        return "lost"
    if job.run is None or job.run.lease is not None:
        return "refused"
    end(index, source, slot, job, how)
    return "done"


def report(index: Index, queue: str, id: str, fence: int, progress: bytes) -> ReportStatus:
    """Keep the progress of an active run."""
    source = index.look(queue)
    slot = source.slots.get(id, EMPTY)
    job = slot.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    source.put(id, transitions.report(slot, job, job.run, progress))
    return "reported"
