"""How the oracle accepts enqueues, admits due jobs, and starts, ends and returns runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import frozen
from msgspec.structs import replace

from dibs.model.error_text import to_storable_error
from dibs.model.events import KIND_OF_CAUSE
from dibs.model.job import (
    FAIL_SUFFIX,
    ActiveRun,
    EndKind,
    Error,
    Job,
    JobData,
    NewJob,
    Origin,
    Outcome,
    OutcomeRetention,
)
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Update,
)
from dibs.model.results import CancelStatus, EnqueueResult, EnqueueStatus
from dibs_conformance.oracle.ids import (
    AcceptedEnqueue,
    IdRecord,
    apply_enqueue,
    new_job,
    replay,
    with_attributes,
)
from dibs_conformance.oracle.queue import KeyedResult, Oracle, OracleQueue, first_start

#: The bytes beyond which an update-only request merges no attributes.
MOST_ATTRIBUTES = 65_536


@frozen
class NotLater:
    """The bounds of an expected `next_due`: later than `now`, and at the latest `latest`.

    `latest` is None if no later claim can take more without another change. Then None is correct, too.
    """

    now: int
    latest: int | None

    def allows(self, actual: int | None) -> bool:
        if actual is None:
            return self.latest is None
        return actual > self.now and (self.latest is None or actual <= self.latest)


def opens_at(queue: OracleQueue, key: str | None) -> int:
    """Return the first ms at which the rates of the queue allow a start of a job with this key."""
    time = first_start(queue.settings.rate, queue.starts.of_queue)
    if key is None:
        return time
    return max(time, first_start(queue.settings.key_rate, queue.starts.by_key.get(key, ())))


def has_headroom(queue: OracleQueue) -> bool:
    """Return whether `max_active` of the queue allows another run."""
    most = queue.settings.max_active
    return most is None or len(queue.held()) < most


def full_keys(queue: OracleQueue) -> set[str]:
    """Return the keys that have `per_key` runs under leases, and those with the share 0."""
    most = queue.settings.per_key
    runs = Counter(job.data.key for job, _ in queue.held() if job.data.key is not None)
    full = {key for key, number in runs.items() if most is not None and number >= most}
    return full | {key for key, share in queue.settings.shares.items() if share == 0}


def is_admitted(queue: OracleQueue, job: Job, now: int, full: set[str] | None = None) -> bool:
    """Return whether a due job is admitted: its key is not full, and the rates allow a start."""
    key = job.data.key
    return key not in (full_keys(queue) if full is None else full) and opens_at(queue, key) <= now


def admitted_jobs(queue: OracleQueue, now: int) -> list[Job]:
    """Return the waiting jobs that are due and admitted."""
    full = full_keys(queue)
    due = (job for job in queue.jobs() if job.run is None and job.run_at <= now)
    return [job for job in due if is_admitted(queue, job, now, full)]


def next_due(queue: OracleQueue, now: int) -> int | NotLater | None:
    """Return the `next_due` of a claim that has taken its jobs: the exact time, or its bounds with limits.

    A claim that reached `max_active` need not know a time: the end of a run wakes its caller.
    """
    waiting = [job for job in queue.jobs() if job.run is None]
    if not queue.settings.limits_claims:
        return first_after(now, (job.run_at for job in waiting))
    if not has_headroom(queue):
        return NotLater(now, None)
    full = full_keys(queue)
    openings = (max(j.run_at, opens_at(queue, j.data.key)) for j in waiting if j.data.key not in full)
    return NotLater(now, first_after(now, openings))


def first_after(now: int, times: Iterable[int]) -> int | None:
    return min((time for time in times if time > now), default=None)


def enqueue(queue: OracleQueue, request: EnqueueRequest, now: int, *, bounded: bool = True) -> EnqueueResult:
    """Enqueue one request. If the queue remembers its request_key, only return the earlier result.

    `bounded` is False for a follow-up, which does not obey `max_waiting`.
    """
    key = request.request_key
    before = queue.keys.get(key) if key is not None else None
    if before is not None and now < before.expires_at:
        return replace(before.answer, repeated=True, id=before.id)
    outcome = queue.record(request.job.id).live_outcome(now) if request.want_outcome else None
    answer = accept_or_reject(queue, request, now, bounded=bounded)
    if key is not None and answer.status not in ("full", "dropped"):
        id = "" if answer.status == "absent" else request.job.id
        queue.keys[key] = KeyedResult(answer, id, now + queue.settings.request_key_age)
    return replace(answer, outcome=outcome)


def accept_or_reject(
    queue: OracleQueue, request: EnqueueRequest, now: int, *, bounded: bool
) -> EnqueueResult:
    record = queue.record(request.job.id)
    on_conflict = request.on_conflict
    if isinstance(on_conflict, Reject):
        rejection = find_rejection(record, on_conflict, now)
        if rejection is not None:
            return rejection
        on_conflict = Update()
    elif not on_conflict.create and record.current is None:
        return EnqueueResult("absent", "nothing", 0, 0)
    elif not on_conflict.create and has_no_room(record, request.job.data.attributes):
        return EnqueueResult("full", record.state, 0, 0)  # type: ignore[arg-type]
    if bounded and record.current is None and is_full(queue):
        status: EnqueueStatus = "full" if queue.settings.when_full == "refuse" else "dropped"
        return EnqueueResult(status, "nothing", 0, 0)
    return accept(queue, record, request.job, on_conflict, now)


def has_no_room(record: IdRecord, attributes: Mapping[str, bytes]) -> bool:
    """Return whether the attributes of an update-only request are too large for the job or the successor."""
    parts = [part for part in (record.current, record.successor()) if part is not None]
    sizes = [
        sum(len(name.encode()) + len(value) for name, value in {**part.data.attributes, **attributes}.items())
        for part in parts
    ]
    return bool(attributes) and max(sizes) > MOST_ATTRIBUTES


def is_full(queue: OracleQueue) -> bool:
    """Return whether the queue has `max_waiting` waiting jobs, due or not, or more."""
    most = queue.settings.max_waiting
    return most is not None and sum(job.run is None for job in queue.jobs()) >= most


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
    if on_conflict.supersede and status == "blocked":
        ask_to_end(queue, record, now)
    return EnqueueResult(status, found, holder.first, holder.revision)  # type: ignore[arg-type]


def add_to_id(record: IdRecord, id: str, enqueued: AcceptedEnqueue) -> tuple[str, Job]:
    if record.current is None:
        record.current = made = new_job(id, [enqueued])
        assert made is not None  # noqa: S101 - an update-only request was answered before
        return "queued", made
    if record.current.run is None:
        before = record.current
        record.current = apply_enqueue(before, enqueued)
        if before.seq == 0 and enqueued.on_conflict.run_at != "never":
            record.current = move_parked(before, record.current, enqueued)
        return "updated", record.current
    if not enqueued.on_conflict.create:
        record.current = with_attributes(record.current, enqueued.data.attributes)
    record.during_run.append(enqueued)
    blocked = record.successor()
    assert blocked is not None  # noqa: S101 - it was just added
    return "blocked", blocked


def move_parked(before: Job, after: Job, enqueued: AcceptedEnqueue) -> Job:
    """Return a parked job after a request that moves it: it has a seq. A wake makes it due now."""
    if enqueued.on_conflict.run_at == "wake":
        after = replace(after, run_at=min(before.run_at, enqueued.at))
    return replace(after, seq=enqueued.seq)


def ask_to_end(queue: OracleQueue, record: IdRecord, now: int) -> CancelStatus:
    """Request the cancellation of the active run. A handed-off run ends as cancelled at once."""
    job = record.current
    assert job is not None  # noqa: S101 - the caller found an active run
    assert job.run is not None  # noqa: S101
    if job.run.lease is None:
        end_current(queue, record, "cancelled", now)
        return "cancelled"
    if not job.run.cancel_requested:
        record.current = replace(job, run=replace(job.run, cancel_requested=True))
        queue.log_event("cancel_requested", job.id, now, record.current)
    return "requested"


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
    record = queue.record(job.id)
    record.current = active
    queue.count_start(job.data.key)
    queue.starts.add(job.data.key, now)
    queue.log_event("claimed", job.id, now, active)
    return active


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
        request = EnqueueRequest(job=item.job, on_conflict=item.on_conflict)
        enqueue(oracle.queue(item.queue), request, now, bounded=False)


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
    record.outcome_output, record.output = record.output, []
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
        returned = release(queue, record, replace(job, attempts=job.attempts - 1), action, now)
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


def release(queue: OracleQueue, record: IdRecord, job: Job, action: Release, now: int) -> Job:
    """Return the job with the time and the seq that a release gives it. A parked job has the seq 0."""
    timed = action.run_at is not None or action.delay is not None
    at = resolve_time(action.run_at, action.delay, now) if timed else job.run_at
    if action.parked and not record.was_blocked:
        return replace(job, seq=0, run_at=at)
    if action.parked:
        at = now
    return replace(job, seq=queue.numbers.draw() if timed or job.seq == 0 else job.seq, run_at=at)


def increment_count(job: Job, action: RetryLater) -> dict[str, int]:
    name = {"error": "retries", "timeout": "timeouts", "stall": "stalls"}[action.cause]
    return {name: getattr(job, name) + 1}
