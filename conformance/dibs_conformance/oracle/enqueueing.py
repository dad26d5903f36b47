"""How the oracle accepts enqueues, also those of follow-ups and of fail jobs, and starts runs."""

from __future__ import annotations

from msgspec.structs import replace

from dibs.model.job import ActiveRun, Job, JobData, NewJob, Origin
from dibs.model.requests import EnqueueRequest, Reject, Update
from dibs.model.results import EnqueueResult
from dibs_conformance.oracle.ids import AcceptedEnqueue, IdRecord, apply_enqueue, new_job
from dibs_conformance.oracle.queue import KeyedResult, OracleQueue


def enqueue(queue: OracleQueue, request: EnqueueRequest, now: int) -> EnqueueResult:
    """Enqueue one request. If the queue remembers its request_key, only return the earlier result."""
    key = request.request_key
    before = queue.keys.get(key) if key is not None else None
    if before is not None and now < before.expires_at:
        return replace(before.answer, repeated=True, id=before.id)
    outcome = queue.record(request.job.id).live_outcome(now) if request.want_outcome else None
    answer = accept_or_reject(queue, request, now)
    if key is not None:
        id = "" if answer.status == "absent" else request.job.id
        queue.keys[key] = KeyedResult(answer, id, now + queue.settings.request_key_age)
    return replace(answer, outcome=outcome)


def accept_or_reject(queue: OracleQueue, request: EnqueueRequest, now: int) -> EnqueueResult:
    record = queue.record(request.job.id)
    on_conflict = request.on_conflict
    if isinstance(on_conflict, Reject):
        rejection = find_rejection(record, on_conflict, now)
        if rejection is not None:
            return rejection
        on_conflict = Update()
    elif not on_conflict.create and record.current is None:
        return EnqueueResult("absent", "nothing", 0, 0)
    return accept(queue, record, request.job, on_conflict, now)


def find_rejection(record: IdRecord, on_conflict: Reject, now: int) -> EnqueueResult | None:
    """Return the result of a request that Reject refuses, or None if the request is accepted."""
    found, current, outcome = record.state, record.current, record.live_outcome(now)
    if current is not None:
        return EnqueueResult("duplicate", found, current.first, current.revision)  # type: ignore[arg-type]
    blocking = ("completed", "failed") if on_conflict.failed else ("completed",)
    if outcome is None or outcome.kind not in blocking:
        return None
    return EnqueueResult(outcome.kind, "nothing", outcome.first, outcome.revision)  # type: ignore[arg-type]


def accept(queue: OracleQueue, record: IdRecord, job: NewJob, on_conflict: Update, now: int) -> EnqueueResult:
    """Draw a seq and a revision, then add the request to the id."""
    record.forget_old_drops(now)
    found = record.state
    enqueued = AcceptedEnqueue(
        data=job.data,
        run_at=resolve_time(job.run_at, job.delay, now),
        at=now,
        on_conflict=on_conflict,
        seq=queue.numbers.draw(),
        revision=queue.numbers.draw(),
    )
    status, holder = add_to_id(record, job.id, enqueued)
    queue.log_event(status, job.id, now, holder)
    return EnqueueResult(status, found, holder.first, holder.revision)  # type: ignore[arg-type]


def add_to_id(record: IdRecord, id: str, enqueued: AcceptedEnqueue) -> tuple[str, Job]:
    if record.current is None:
        record.current = made = new_job(id, [enqueued])
        assert made is not None  # noqa: S101 - an update-only request was answered before
        return "queued", made
    if record.current.run is None:
        record.current = apply_enqueue(record.current, enqueued)
        return "updated", record.current
    record.during_run.append(enqueued)
    blocked = record.successor()
    assert blocked is not None  # noqa: S101 - it was just added
    return "blocked", blocked


def resolve_time(run_at: int | None, delay: int | None, now: int) -> int:
    """Return the absolute time: `run_at`, or `delay` from now, or now."""
    if run_at is not None:
        return run_at
    return now + (delay or 0)


def enqueue_fail_job(queue: OracleQueue, payload: bytes, origin: Origin, now: int) -> str:
    """Enqueue a fail job, and return its id, which begins with "?".

    Storages generate the ids of fail jobs. The lockstep later replaces this id by that of the storage.
    """
    id = f"?{queue.numbers.draw()}"
    record = queue.record(id)
    accept(queue, record, NewJob(id=id, data=JobData(payload=payload)), Update(), now)
    assert record.current is not None  # noqa: S101 - it was just put there
    record.current = replace(record.current, origin=origin)
    return id


def activate(queue: OracleQueue, job: Job, lease: str, holder: str, now: int) -> Job:
    run = ActiveRun(fence=queue.numbers.draw(), lease=lease, holder=holder, claimed_at=now)
    active = replace(job, attempts=job.attempts + 1, run=run)
    queue.record(job.id).current = active
    queue.starts.add(job.data.key, now)
    queue.log_event("claimed", job.id, now, active)
    return active
