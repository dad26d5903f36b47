"""The oracle's implementation of the verbs on leases: grant, renew, drop, reap and report.

The contract lets a storage choose which jobs a limited `drop` or `reap` takes. The oracle gets the ids that
the storage chose, and checks that the choice was allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model.requests import Release, RetryLater
from dibs.model.results import ReapedJob, RenewResult, ReportStatus
from dibs_conformance.oracle.ending import return_to_waiting
from dibs_conformance.oracle.queue import OracleLease, OracleQueue


class ForbiddenChoice(Exception):
    """A `drop` or `reap` of the storage took jobs that the contract does not allow."""


def grant(queue: OracleQueue, lease: str, ttl: int, holder: str, now: int) -> None:
    queue.leases[lease] = OracleLease(holder, now + ttl)


def renew(queue: OracleQueue, lease: str, ttl: int, now: int) -> RenewResult:
    """Extend a live lease to `ttl` from now, but never shorten it."""
    found = queue.lease(lease, now)
    if found is None:
        return RenewResult(alive=False, now=now)
    found.expires_at = max(found.expires_at, now + ttl)
    requested = sorted(job.id for job, run in queue.held(lease) if run.cancel_requested)
    return RenewResult(alive=True, now=now, expires_at=found.expires_at, cancel_requested=tuple(requested))


def drop(queue: OracleQueue, lease: str, limit: int, chosen: Sequence[str] | None, now: int) -> int:
    """Drop a lease and release up to `limit` of its jobs. Return the number of jobs left under it.

    `chosen` are the jobs that the storage released; None releases all.
    """
    found = queue.leases.get(lease)
    if found is None or now >= found.expires_at:
        return 0
    found.dropped = True
    held = [job.id for job, _ in queue.held(lease)]
    released = check_choice("drop", held, limit, held if chosen is None else chosen)
    for id in released:
        return_to_waiting(queue, queue.record(id), Release(), now)
    return len(held) - len(released)


def expired_ids(queue: OracleQueue, now: int) -> list[str]:
    """Return the ids that a reap without a limit would return to the queue."""
    return [job.id for job, run in queue.held() if queue.expired(run, now)]


def reap(queue: OracleQueue, limit: int, chosen: Sequence[str], now: int) -> list[ReapedJob]:
    """Return up to `limit` jobs under expired leases to the queue.

    `chosen` are the jobs that the storage took, in its order.
    """
    reaped = check_choice("reap", expired_ids(queue, now), limit, chosen)
    return [reap_one(queue, id, now) for id in reaped]


def reap_one(queue: OracleQueue, id: str, now: int) -> ReapedJob:
    record = queue.record(id)
    assert record.current is not None  # noqa: S101 - a held job is current
    run = record.current.run
    assert run is not None  # noqa: S101
    assert run.lease is not None  # noqa: S101
    dropped = queue.leases[run.lease].dropped
    action = Release() if dropped else RetryLater(cause="stall")
    if not return_to_waiting(queue, record, action, now):
        return ReapedJob(id, run.fence, "cancelled")
    return ReapedJob(id, run.fence, "released" if dropped else "stalled")


def check_choice(verb: str, candidates: Sequence[str], limit: int, chosen: Sequence[str]) -> list[str]:
    """Return the chosen ids.

    Raises ForbiddenChoice unless they are `limit` of the candidates, or all candidates, without repetition.
    """
    due = min(limit, len(candidates))
    if len(chosen) != due or len(set(chosen)) != due or not set(chosen) <= set(candidates):
        raise ForbiddenChoice(f"{verb} took {sorted(chosen)}; expected {due} of {sorted(candidates)}")
    return list(chosen)


def report(
    queue: OracleQueue, id: str, fence: int, progress: bytes | None, memo: bytes | None
) -> ReportStatus:
    """Store progress, a memo, or both, on the active run with this fence. An empty memo removes the memo."""
    record = queue.record(id)
    job = record.current
    if job is None or job.run is None or job.run.fence != fence:
        return "lost"
    if progress is not None:
        job = replace(job, run=replace(job.run, progress=progress))
    if memo is not None:
        job = replace(job, data=replace(job.data, memo=memo or None))
    record.current = job
    return "reported"
