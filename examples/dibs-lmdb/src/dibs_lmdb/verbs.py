"""The verbs that change ids, each as a function of the queues of one step."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

from msgspec import structs

from dibs.model import events, fold, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.error_text import to_storable_error
from dibs.model.job import (
    EMPTY,
    FAIL_SUFFIX,
    FOREVER,
    ActiveRun,
    Job,
    JobData,
    NewJob,
    Outcome,
    OutcomeRetention,
    Slot,
)
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    EnqueueResult,
    FinishStatus,
    ReapedJob,
    ReportStatus,
    RetryFailedStatus,
    SettleResult,
)
from dibs.storage.indexed import output
from dibs_lmdb import keys
from dibs_lmdb.queue import QueueRecords, Queues
from dibs_lmdb.records import LeaseRecord

End = Complete | Fail | Cancelled

KEPT_FOR_EVER = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
"""The retention of jobs that fail in a fail queue. It overrides the retention of the queue and of the job."""


def token(queues: Queues) -> str:
    """Return the place of this step among all changes, and its time."""
    return f"{queues.step.meta.drawn}.{queues.step.now}"


def enqueue(queues: Queues, name: str, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    queue = queues[name]
    results = []
    for request in requests:
        known = None if request.request_key is None else queue.request(request.request_key)
        if known is not None:
            results.append(structs.replace(known.result, repeated=True))
            continue
        before = queue.get(request.job.id)
        result = admit(queues, name, request.job, request.on_conflict)
        if request.request_key is not None and result.status not in rules.STOPPED:
            # A request that changed nothing has no job, so its remembered result names no id.
            id = "" if result.status == "absent" else request.job.id
            queue.remember(request.request_key, structs.replace(result, id=id))
        if request.want_outcome:
            outcome = transitions.unexpired(before.outcome, queues.step.now)
            result = structs.replace(result, outcome=outcome)
        results.append(result)
    return results


def admit(queues: Queues, name: str, new: NewJob, on_conflict: OnConflict) -> EnqueueResult:
    queue, now = queues[name], queues.step.now
    before = queue.get(new.id)
    unchanged = rules.decide_unchanged(before, on_conflict, now)
    unchanged = unchanged or rules.decide_attributes(before, new, on_conflict)
    if unchanged is not None:
        return unchanged
    if isinstance(on_conflict, Reject):
        on_conflict = Update()
    after, result, part = rules.apply_update(before, new, on_conflict, now, queue.step.draw())
    queue.put(new.id, before, after)
    queue.log(events.note_event(result.status, new.id, now, part))  # type: ignore[arg-type]
    if on_conflict.supersede:
        ask_to_end(queues, queue, new.id)
    return result


def claim(queues: Queues, name: str, lease: str, limit: int) -> ClaimResult:
    queue, now = queues[name], queues.step.now
    found = queue.lease(lease)
    if found is None or not found.is_alive(now):
        return ClaimResult(now=now, token=token(queues), lost=True)
    if queue.record.settings.paused:
        return ClaimResult(now=now, token=token(queues))
    jobs: list[Job] = []
    while len(jobs) < limit and queue.has_room():
        record = queue.next_due_job()
        if record is None or record.slot.current is None:
            break
        job = transitions.claim(record.slot.current, queue.step.draw(), lease, found.holder, now)
        queue.put(record.id, record.slot, structs.replace(record.slot, current=job))
        queue.log(events.note_event("claimed", record.id, now, job))
        jobs.append(job)
    return ClaimResult(jobs=tuple(jobs), now=now, next_due=queue.next_run_at(now), token=token(queues))


def settle(queues: Queues, name: str, settlements: Sequence[Settlement]) -> list[SettleResult]:
    queue = queues[name]
    results = []
    for settlement in settlements:
        decided = rules.decide_settle(queue.get(settlement.id), settlement, LIMITS)
        if not isinstance(decided, SettleResult):
            before = queue.get(settlement.id)
            apply(queues, queue, settlement.id, _cut(decided))
            decided = rules.settle_result(before, settlement.action, decided)
        results.append(decided)
    return results


def apply(queues: Queues, queue: QueueRecords, id: str, action: SettleAction) -> None:
    """Apply the action to the active run of an id."""
    before, now = queue.get(id), queue.step.now
    job, run = _active(before)
    if isinstance(action, Complete | Fail | Cancelled):
        end(queues, queue, id, action)
    elif isinstance(action, RetryLater):
        run_at = now + (action.delay or 0) if action.run_at is None else action.run_at
        after = transitions.retry(before, job, action.cause, run_at, queue.step.draw(), action.error)
        queue.put(id, before, after)
        queue.log(events.attempt_event(events.KIND_OF_CAUSE[action.cause], job, now, action.error))
    elif isinstance(action, Release):
        queue.put(id, before, transitions.release_by(before, job, action, now, queue.step.draw))
        queue.log(events.attempt_event("released", job, now))
    elif isinstance(action, HandOff):
        after = transitions.hand_off(before, job, run)
        queue.put(id, before, after)
        queue.log(events.note_event("handed_off", id, now, after.current))


def _current(slot: Slot) -> Job:
    if slot.current is None:
        raise LookupError("the id has no job")
    return slot.current


def _active(slot: Slot) -> tuple[Job, ActiveRun]:
    job = _current(slot)
    if job.run is None:
        raise LookupError("the job is not active")
    return job, job.run


def _failed(slot: Slot) -> tuple[Outcome, JobData]:
    if slot.outcome is None or slot.outcome.data is None:
        raise LookupError("the id has no failed job that can run again")
    return slot.outcome, slot.outcome.data


def end(queues: Queues, queue: QueueRecords, id: str, action: End) -> None:
    """End the current job of an id, and enqueue its fail job and its follow-ups."""
    before, now = queue.get(id), queue.step.now
    job = _current(before)
    if isinstance(action, Fail) and queue.name.endswith(FAIL_SUFFIX):
        action = structs.replace(action, retention=KEPT_FOR_EVER)
    after = transitions.end(before, job, action, now, queue.record.settings.retention)
    queue.put(id, before, after)
    is_kept = transitions.unexpired(after.outcome, now) is not None
    queue.change_output(id, lambda known: output.after_end(known) if is_kept else None)
    job = fold.joined_range(job, before.successor)
    queue.log(_end_event(queue, job, action))
    if after.current is not None:
        queue.log(events.note_event("promoted", id, now, after.current))
    has_handler = queue.record.settings.fail_handler
    if isinstance(action, Fail) and has_handler and not queue.name.endswith(FAIL_SUFFIX):
        number = queue.step.draw()
        fail_id = f"{number:016x}-{secrets.token_hex(4)}"
        fail_job = transitions.make_fail_job(queue.name, job, action.error, fail_id, now, number)
        fail_queue = queues[queue.name + FAIL_SUFFIX]
        fail_queue.put(fail_id, EMPTY, structs.replace(EMPTY, current=fail_job))
        fail_queue.log(events.note_event("queued", fail_id, now, fail_job))
    if not isinstance(action, Cancelled):
        for follow_up in action.then:
            admit(queues, follow_up.queue, follow_up.job, follow_up.on_conflict)


def _end_event(queue: QueueRecords, job: Job, action: End) -> events.LogEvent:
    kind, now = transitions.outcome_kind(action), queue.step.now
    if isinstance(action, Complete):
        result = events.logged_result(action.result, queue.record.settings.log_results)
        return events.attempt_event(kind, job, now, result=result)
    return events.attempt_event(kind, job, now, action.error)


def finish(queues: Queues, name: str, id: str, action: End, revision: int) -> FinishStatus:
    decided = rules.decide_finish(queues[name].get(id), action, revision)
    if decided is None:
        end(queues, queues[name], id, _cut(action))
        return "done"
    return decided


Action = TypeVar("Action", bound=SettleAction)


def _cut(action: Action) -> Action:
    """Cut the error of an action to its limit."""
    if isinstance(action, Fail | Cancelled | RetryLater) and action.error is not None:
        return structs.replace(action, error=to_storable_error(action.error))
    return action


def drop(queues: Queues, name: str, lease: str, limit: int) -> int:
    queue, hashed, now = queues[name], keys.digest(lease), queues.step.now
    found = queue.lease(lease)
    if found is None or now >= found.expires:
        return 0
    _return_jobs(queues, queue, hashed, limit, stalled=False)
    left = queue.number_under(hashed)
    # A reap releases the jobs that are left, once the lease has expired.
    queue.put_lease(hashed, found, LeaseRecord(found.holder, found.expires, dropped=True) if left else None)
    return left


def reap(queues: Queues, name: str, limit: int) -> list[ReapedJob]:
    queue = queues[name]
    reaped: list[ReapedJob] = []
    for hashed, lease in queue.expired_leases():
        if len(reaped) == limit:
            break
        reaped += _return_jobs(queues, queue, hashed, limit - len(reaped), stalled=not lease.dropped)
        if not queue.jobs_under(hashed, 1):
            queue.put_lease(hashed, lease, None)
    return reaped


def _return_jobs(
    queues: Queues, queue: QueueRecords, hashed: bytes, limit: int, *, stalled: bool
) -> list[ReapedJob]:
    returned = []
    for record in queue.jobs_under(hashed, limit):
        job, run = _active(record.slot)
        action, kind = rules.decide_action_without_lease(job, stalled=stalled)
        apply(queues, queue, record.id, action)
        returned.append(ReapedJob(id=record.id, fence=run.fence, kind=kind))
    return returned


def cancel(queues: Queues, name: str, id: str, *, running: bool) -> CancelStatus:
    queue, now = queues[name], queues.step.now
    decided = rules.decide_cancel(queue.get(id), now, running=running)
    if decided not in ("cancelled", "requested"):
        return decided
    before = queue.get(id)
    if before.current is None:
        return decided  # The outcome is `cancelled` already.
    if before.current.run is None:
        end(queues, queue, id, Cancelled())
        return decided
    if before.successor is not None:
        after = transitions.drop_successor(before, before.successor, now)
        queue.put(id, before, after)
        queue.log(events.dropped_event(id, before.successor, now))
    if running:
        ask_to_end(queues, queue, id)
    return decided


def ask_to_end(queues: Queues, queue: QueueRecords, id: str) -> None:
    """Ask the active run of an id, if any, to end. A handed-off run ends as cancelled at once."""
    before = queue.get(id)
    if (active := rules.active_run(before)) is None:
        return
    job, run = active
    if run.lease is None:
        end(queues, queue, id, Cancelled())
    elif not run.cancel_requested:
        after = transitions.request_cancel(before, job, run)
        queue.put(id, before, after)
        queue.log(events.note_event("cancel_requested", id, queue.step.now, after.current))


def report(
    queues: Queues,
    name: str,
    id: str,
    fence: int,
    reported: tuple[bytes | None, bytes | None, Sequence[bytes]],
) -> ReportStatus:
    progress, memo, chunks = reported
    queue = queues[name]
    before = queue.get(id)
    job = before.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    if progress is not None or memo is not None:
        queue.put(id, before, transitions.report(before, job, job.run, progress, memo))
    if chunks:
        event = events.output_event(job, job.run, queue.step.now)
        report = output.reported(queue.step.draw(), event, tuple(map(bytes, chunks)))
        queue.put_output(id, output.append(queue.output(id), report, LIMITS.output))
    if progress is not None or chunks:
        queue.mark_reported(id)
    return "reported"


def amend(queues: Queues, name: str, id: str, patch: JobPatch) -> AmendStatus:
    queue, now = queues[name], queues.step.now
    before = queue.get(id)
    decided = rules.decide_amend(before, patch, now)
    if decided == "amended":
        after = transitions.amend(before, patch, now)
        for part in (after.current, after.successor):
            if part is not None:
                check_attributes(part.data.attributes)
        if after.current is None and after.outcome is not None:
            check_attributes(after.outcome.kept_attributes)
        queue.put(id, before, after)
        queue.log(events.note_event("amended", id, now, after.current))
    return decided


def retry_failed(queues: Queues, name: str, id: str, delay: int) -> RetryFailedStatus:
    queue, now = queues[name], queues.step.now
    before = queue.get(id)
    decided = rules.decide_retry_failed(before, now)
    if decided == "queued":
        outcome, data = _failed(before)
        after = transitions.retry_failed(before, outcome, id, data, now, queue.step.draw(), delay=delay)
        queue.put(id, before, after)
        queue.change_output(id, lambda known: structs.replace(known, begin=0))
        queue.log(events.note_event("queued", id, now, after.current))
    return decided


def forget(queues: Queues, name: str, id: str) -> bool:
    queue, now = queues[name], queues.step.now
    before = queue.get(id)
    if before == EMPTY:
        return False
    queue.put(id, before, EMPTY)
    queue.put_output(id, None)
    seen = rules.hide_expired_outcome(before, now) != EMPTY
    if seen:
        queue.log(events.note_event("forgotten", id, now))
    return seen
