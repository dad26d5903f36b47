"""Enqueue, claim and retry_failed: how a job comes to wait, and how it comes to run."""

from __future__ import annotations

from msgspec.structs import replace

from dibs.model.job import ActiveRun, Job, JobData, NewJob, Origin
from dibs.model.requests import EnqueueRequest, Reject, Update
from dibs.model.results import ClaimResult, EnqueueResult, RetryFailedStatus
from dibs_conformance.oracle.ids import Asked, Known, started, updated
from dibs_conformance.oracle.queue import Queue, Remembered


def enqueue(queue: Queue, request: EnqueueRequest, now: int) -> EnqueueResult:
    """Take one request in, or answer what its request_key got before."""
    key = request.request_key
    before = queue.keys.get(key) if key is not None else None
    if before is not None and now < before.expires_at:
        return replace(before.answer, repeated=True)
    outcome = queue.known(request.job.id).alive(now) if request.want_outcome else None
    answer = taken(queue, request, now)
    if key is not None:
        queue.keys[key] = Remembered(answer, now + queue.settings.request_key_age)
    return replace(answer, outcome=outcome)


def taken(queue: Queue, request: EnqueueRequest, now: int) -> EnqueueResult:
    known = queue.known(request.job.id)
    how = request.on_conflict
    if isinstance(how, Reject):
        rejection = rejected(known, how, now)
        if rejection is not None:
            return rejection
        how = Update()
    return accepted(queue, known, request.job, how, now)


def rejected(known: Known, how: Reject, now: int) -> EnqueueResult | None:
    """What stands in the way of a Reject, if anything does."""
    found, current, outcome = known.state, known.current, known.alive(now)
    if current is not None:
        return EnqueueResult("duplicate", found, current.first, current.revision)  # type: ignore[arg-type]
    blocking = ("completed", "failed") if how.failed else ("completed",)
    if outcome is None or outcome.kind not in blocking:
        return None
    return EnqueueResult(outcome.kind, "nothing", outcome.first, outcome.revision)  # type: ignore[arg-type]


def accepted(queue: Queue, known: Known, job: NewJob, how: Update, now: int) -> EnqueueResult:
    """Draw the numbers, then start, update or block."""
    known.tidy(now)
    found = known.state
    asked = Asked(
        data=job.data,
        run_at=resolved(job.run_at, job.delay, now),
        at=now,
        how=how,
        seq=queue.numbers.draw(),
        revision=queue.numbers.draw(),
    )
    status, holder = placed(known, job.id, asked)
    queue.note(status, job.id, now)
    return EnqueueResult(status, found, holder.first, holder.revision)  # type: ignore[arg-type]


def placed(known: Known, id: str, asked: Asked) -> tuple[str, Job]:
    if known.current is None:
        known.current = started(id, [asked])
        return "queued", known.current
    if known.current.run is None:
        known.current = updated(known.current, asked)
        return "updated", known.current
    known.beside.append(asked)
    return "blocked", started(id, known.beside)


def resolved(run_at: int | None, delay: int | None, now: int) -> int:
    """An absolute time, a delay from now, or now."""
    if run_at is not None:
        return run_at
    return now + (delay or 0)


def enqueue_fail_job(queue: Queue, payload: bytes, origin: Origin, now: int) -> str:
    """Put the fail job in its queue under a name that stands for the generated id."""
    id = f"?{queue.numbers.draw()}"
    known = queue.known(id)
    accepted(queue, known, NewJob(id=id, data=JobData(payload=payload)), Update(), now)
    assert known.current is not None  # noqa: S101 - it was just put there
    known.current = replace(known.current, origin=origin)
    return id


def claim(queue: Queue, lease: str, limit: int, now: int) -> ClaimResult:
    """Make due jobs active: the most urgent first, then the longest due, then the first in line."""
    holder = queue.lease(lease, now)
    if holder is None:
        return ClaimResult(now=now, lost=True)
    if queue.settings.paused:
        return ClaimResult(now=now)
    room = limit
    if queue.settings.max_active is not None:
        room = min(limit, max(0, queue.settings.max_active - len(queue.held())))
    due = [job for job in queue.jobs() if job.run is None and job.run_at <= now]
    due.sort(key=lambda job: (-job.data.priority, job.run_at, job.seq))
    jobs = tuple(begun(queue, job, lease, holder.holder, now) for job in due[:room])
    later = [job.run_at for job in queue.jobs() if job.run is None and job.run_at > now]
    return ClaimResult(jobs=jobs, now=now, next_due=min(later, default=None))


def begun(queue: Queue, job: Job, lease: str, holder: str, now: int) -> Job:
    run = ActiveRun(fence=queue.numbers.draw(), lease=lease, holder=holder, claimed_at=now)
    active = replace(job, attempts=job.attempts + 1, run=run)
    queue.known(job.id).current = active
    queue.note("claimed", job.id, now)
    return active


def retry_failed(queue: Queue, id: str, now: int) -> RetryFailedStatus:
    """Bring a failed job back from its outcome."""
    known = queue.known(id)
    outcome = known.alive(now)
    if known.current is not None:
        return "live"
    if outcome is None:
        return "not_found"
    if outcome.kind != "failed":
        return outcome.kind
    if outcome.data is None:
        return "not_kept"
    known.tidy(now)
    known.current, known.outcome = revived(queue, id, outcome.origin, outcome.data, now), None
    queue.note("queued", id, now)
    return "queued"


def revived(queue: Queue, id: str, origin: Origin | None, data: JobData, now: int) -> Job:
    """Waiting at now, counts 0, fresh numbers, the payload and what goes with it as kept."""
    seq, revision = queue.numbers.draw(), queue.numbers.draw()
    return Job(
        id=id,
        data=data,
        run_at=now,
        enqueued_at=now,
        seq=seq,
        first=revision,
        revision=revision,
        origin=origin,
    )
