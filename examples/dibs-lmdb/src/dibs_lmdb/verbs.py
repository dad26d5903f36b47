"""The verbs that change ids, each as a function of the queues of one step."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

from msgspec import UNSET, structs

from dibs.model import events, rules, transitions
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
    Settings,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    EnqueueResult,
    ExportRecord,
    FinishStatus,
    ImportStatus,
    PruneResult,
    ReapedJob,
    ReportStatus,
    RetryFailedStatus,
    SettleResult,
)
from dibs.storage.offsets import format_offset
from dibs_lmdb import keys
from dibs_lmdb.queue import Queue, Queues
from dibs_lmdb.records import LeaseRecord, LogEntry, unpack

End = Complete | Fail | Cancelled

ENTRIES_PER_PRUNE = 1000

KEPT_FOR_EVER = OutcomeRetention(failed=FOREVER, keep_payload=("failed",))
"""The retention of the jobs that fail in a fail queue, whatever the queue and the job ask for."""


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
        result = admit(queue, request.job, request.on_conflict)
        if request.request_key is not None:
            queue.remember(request.request_key, structs.replace(result, id=request.job.id))
        if request.want_outcome:
            outcome = transitions.unexpired(before.outcome, queues.step.now)
            result = structs.replace(result, outcome=outcome)
        results.append(result)
    return results


def admit(queue: Queue, new: NewJob, on_conflict: OnConflict) -> EnqueueResult:
    now, before = queue.step.now, queue.get(new.id)
    if isinstance(on_conflict, Reject):
        rejected = rules.decide_reject(before, on_conflict, now)
        if rejected is not None:
            return rejected
        on_conflict = Update()
    after, result, part = rules.apply_update(before, new, on_conflict, now, queue.step.draw())
    queue.put(new.id, before, after)
    queue.log(events.note_event(result.status, new.id, now, part))  # type: ignore[arg-type]
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


def apply(queues: Queues, queue: Queue, id: str, action: SettleAction) -> None:
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
        queue.put(id, before, transitions.release(before, job))
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


def end(queues: Queues, queue: Queue, id: str, action: End) -> None:
    """End the current job of an id, and enqueue what follows."""
    before, now = queue.get(id), queue.step.now
    job = _current(before)
    if isinstance(action, Fail) and queue.name.endswith(FAIL_SUFFIX):
        action = structs.replace(action, retention=KEPT_FOR_EVER)
    after = transitions.end(before, job, action, now, queue.record.settings.retention)
    error = action.error if isinstance(action, Fail) else None
    queue.put(id, before, after)
    queue.log(events.attempt_event(transitions.outcome_kind(action), job, now, error))
    if after.current is not None:
        queue.log(events.note_event("promoted", id, now, after.current))
    if isinstance(action, Fail) and action.handled and not queue.name.endswith(FAIL_SUFFIX):
        number = queue.step.draw()
        fail_id = f"{number:016x}-{secrets.token_hex(4)}"
        fail_job = transitions.make_fail_job(queue.name, job, action.error, fail_id, now, number)
        fail_queue = queues[queue.name + FAIL_SUFFIX]
        fail_queue.put(fail_id, EMPTY, structs.replace(EMPTY, current=fail_job))
        fail_queue.log(events.note_event("queued", fail_id, now, fail_job))
    if not isinstance(action, Cancelled):
        for follow_up in action.then:
            admit(queues[follow_up.queue], follow_up.job, follow_up.on_conflict)


def finish(queues: Queues, name: str, id: str, action: End, revision: int) -> FinishStatus:
    decided = rules.decide_finish(queues[name].get(id), action, revision)
    if decided is None:
        end(queues, queues[name], id, _cut(action))
        return "done"
    return decided


Action = TypeVar("Action", bound=SettleAction)


def _cut(action: Action) -> Action:
    """Cut the error of an action to its limit."""
    if isinstance(action, Fail | RetryLater) and action.error is not None:
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
    queues: Queues, queue: Queue, hashed: bytes, limit: int, *, stalled: bool
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
        before = after
    job = before.current
    if running and job is not None and job.run is not None:
        if job.run.lease is None:
            end(queues, queue, id, Cancelled())
        elif not job.run.cancel_requested:
            after = transitions.request_cancel(before, job, job.run)
            queue.put(id, before, after)
            queue.log(events.note_event("cancel_requested", id, now, after.current))
    return decided


def report(queues: Queues, name: str, id: str, fence: int, progress: bytes) -> ReportStatus:
    queue = queues[name]
    before = queue.get(id)
    job = before.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    queue.put(id, before, transitions.report(before, job, job.run, progress))
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
        queue.put(id, before, after)
        queue.log(events.note_event("amended", id, now, after.current))
    return decided


def retry_failed(queues: Queues, name: str, id: str) -> RetryFailedStatus:
    queue, now = queues[name], queues.step.now
    before = queue.get(id)
    decided = rules.decide_retry_failed(before, now)
    if decided == "queued":
        outcome, data = _failed(before)
        after = transitions.retry_failed(before, outcome, id, data, now, queue.step.draw())
        queue.put(id, before, after)
        queue.log(events.note_event("queued", id, now, after.current))
    return decided


def forget(queues: Queues, name: str, id: str) -> bool:
    queue, now = queues[name], queues.step.now
    before = queue.get(id)
    if before == EMPTY:
        return False
    queue.put(id, before, EMPTY)
    seen = rules.hide_expired_outcome(before, now) != EMPTY
    if seen:
        queue.log(events.note_event("forgotten", id, now))
    return seen


def configure(queues: Queues, name: str, patch: SettingsPatch) -> Settings:
    queue, now = queues[name], queues.step.now
    before = queue.record.settings
    changes = {field: value for field, value in structs.asdict(patch).items() if value is not UNSET}
    settings = structs.replace(before, **changes)
    if settings == before:
        return before
    # A change of the log level is logged if the old or the new level includes it.
    if settings.log_level == "all":
        queue.record.settings = settings
    if settings.paused != before.paused:
        queue.log(events.note_event("paused" if settings.paused else "resumed", "", now))
    if settings != structs.replace(before, paused=settings.paused):
        queue.log(events.note_event("configured", "", now))
    queue.record.settings = settings
    queue.record.work = queue.step.draw()
    return settings


def prune(queues: Queues, name: str, limit: int) -> PruneResult:
    queue, step = queues[name], queues.step
    outcomes = [key[8:] for key, _ in _expired(queue, keys.OUTCOME_EXPIRY, limit + 1)]
    for hashed in outcomes[:limit]:
        record = queue.by_hash(hashed)
        queue.put(record.id, record.slot, structs.replace(record.slot, outcome=None))
    requests = [key[8:] for key, _ in _expired(queue, keys.REQUEST_EXPIRY, limit + 1)]
    for hashed in requests[:limit]:
        queue.forget_request(hashed)
    old: list[tuple[bytes, int, int]] = []
    size, settings = queue.record.log_bytes, queue.record.settings
    for key, packed in step.scan(queue.prefix(keys.EVENTS)):
        entry = unpack(LogEntry, packed, f"the log of queue {name!r}")
        if len(old) > ENTRIES_PER_PRUNE or (
            size <= settings.log_bytes and step.now < entry.at + settings.log_age
        ):
            break
        old.append((key, len(packed), len(entry.events)))
        size -= len(packed)
    more = len(outcomes) > limit or len(requests) > limit or len(old) > ENTRIES_PER_PRUNE
    for key, length, count in old[:ENTRIES_PER_PRUNE]:
        step.delete(queue.prefix(keys.EVENTS) + key)
        queue.record.log_bytes -= length
        queue.record.trimmed = format_offset(keys.read_number(key), count - 1)
    removed = sum(count for _, _, count in old[:ENTRIES_PER_PRUNE])
    return PruneResult(
        outcomes=len(outcomes[:limit]), request_keys=len(requests[:limit]), events=removed, more=more
    )


def _expired(queue: Queue, tag: bytes, most: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for key, value in queue.step.scan(queue.prefix(tag)):
        if len(found) == most or keys.read_number(key[:8]) > queue.step.now:
            break
        found.append((key, value))
    return found


def import_record(queues: Queues, name: str, record: ExportRecord) -> ImportStatus:
    queue, step = queues[name], queues.step
    before = queue.get(record.id)
    if rules.hide_expired_outcome(before, step.now) != EMPTY:
        return "exists"
    step.meta.drawn = max(step.meta.drawn, *rules.numbers_in(record.slot), 0)
    after = rules.imported_slot(record.slot, step.now, queue.record.settings.retention)
    queue.put(record.id, before, after)
    return "imported"
