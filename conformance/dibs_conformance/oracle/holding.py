"""Leases: grant, renew, drop, reap and report."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model.requests import Release, RetryLater
from dibs.model.results import ReapedJob, RenewResult, ReportStatus
from dibs_conformance.oracle.ending import return_to_waiting
from dibs_conformance.oracle.queue import Lease, Queue


class ForbiddenChoice(Exception):
    """The storage chose what the contract does not leave to choose."""


def grant(queue: Queue, lease: str, ttl: int, holder: str, now: int) -> None:
    queue.leases[lease] = Lease(holder, now + ttl)


def renew(queue: Queue, lease: str, ttl: int, now: int) -> RenewResult:
    """A live lease ends `ttl` from now, never earlier than it would have."""
    found = queue.lease(lease, now)
    if found is None:
        return RenewResult(alive=False, now=now)
    found.expires_at = max(found.expires_at, now + ttl)
    asked = sorted(job.id for job, run in queue.held(lease) if run.cancel_requested)
    return RenewResult(alive=True, now=now, expires_at=found.expires_at, cancel_requested=tuple(asked))


def drop(queue: Queue, lease: str, limit: int, chosen: Sequence[str] | None, now: int) -> int:
    """Release up to `limit` jobs of the lease, those the storage chose, and tell how many are left."""
    found = queue.leases.get(lease)
    if found is None or now >= found.expires_at:
        return 0
    found.dropped = True
    held = [job.id for job, _ in queue.held(lease)]
    released = check_choice("drop", held, limit, held if chosen is None else chosen)
    for id in released:
        return_to_waiting(queue, queue.record(id), Release(), now)
    return len(held) - len(released)


def expired(queue: Queue, now: int) -> list[str]:
    """The ids that a reap without a limit would take."""
    return [job.id for job, run in queue.held() if queue.expired(run, now)]


def reap(queue: Queue, limit: int, chosen: Sequence[str], now: int) -> list[ReapedJob]:
    """Bring back up to `limit` jobs under expired leases, those the storage chose, in its order."""
    taken = check_choice("reap", expired(queue, now), limit, chosen)
    return [reap_one(queue, id, now) for id in taken]


def reap_one(queue: Queue, id: str, now: int) -> ReapedJob:
    record = queue.record(id)
    assert record.current is not None  # noqa: S101 - it is held
    run = record.current.run
    assert run is not None  # noqa: S101
    assert run.lease is not None  # noqa: S101
    dropped = queue.leases[run.lease].dropped
    how = Release() if dropped else RetryLater(cause="stall")
    if not return_to_waiting(queue, record, how, now):
        return ReapedJob(id, run.fence, "cancelled")
    return ReapedJob(id, run.fence, "released" if dropped else "stalled")


def check_choice(verb: str, candidates: Sequence[str], limit: int, chosen: Sequence[str]) -> list[str]:
    """Up to `limit` of the candidates is what may be taken: no others, no fewer, none twice."""
    due = min(limit, len(candidates))
    if len(chosen) != due or len(set(chosen)) != due or not set(chosen) <= set(candidates):
        raise ForbiddenChoice(
            f"{verb} took {sorted(chosen)}; the contract says {due} of {sorted(candidates)}"
        )
    return list(chosen)


def report(queue: Queue, id: str, fence: int, progress: bytes) -> ReportStatus:
    """Keep progress on the active run with this fence."""
    record = queue.record(id)
    job = record.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    record.current = replace(job, run=replace(job.run, progress=progress))
    return "reported"
