"""The verbs claim, grant, renew, drop and reap: jobs become active under a lease, or return to waiting.

A lease is the right of a worker to the jobs that it claims with it. The lease expires unless it is renewed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, transitions
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.results import ClaimResult, GrantResult, ReapedJob, RenewResult
from dibs.storage.indexed import settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Lease


def claim(index: Index, queue: str, lease_id: str, limit: int) -> ClaimResult:
    """Make up to `limit` due jobs active under a lease, fewer if max_active of the queue allows fewer.

    A lease that is unknown, expired or dropped claims no job and returns `lost`.
    """
    source = index.find_queue(queue)
    lease = source.leases.get(lease_id)
    if lease is None or not lease.alive(index.now):
        return ClaimResult(now=index.now, token=str(source.work_version), lost=True)
    if source.settings.paused:
        return ClaimResult(now=index.now, token=str(source.work_version))
    headroom = source.headroom
    jobs = _claim_due_jobs(
        index, source, lease_id, lease.holder, limit if headroom is None else min(limit, headroom)
    )
    return ClaimResult(
        jobs=tuple(jobs), now=index.now, next_due=source.next_due(), token=str(source.work_version)
    )


def _claim_due_jobs(index: Index, queue: QueueIndex, lease: str, holder: str, limit: int) -> list[Job]:
    jobs: list[Job] = []
    settings = queue.settings
    logs = settings.log_level == "all"
    charges = settings.rate is not None or settings.key_rate is not None
    while len(jobs) < limit:
        slot = queue.pop_due()
        if slot is None or (waiting := slot.current) is None:
            break
        if charges:
            queue.charge_start(waiting.data.key)
        job = transitions.claim(waiting, index.next_number(), lease, holder, index.now)
        queue.put(job.id, Slot(job, None, slot.outcome, slot.dropped))
        jobs.append(job)
        if logs:
            index.log_event(queue, events.note_event("claimed", job.id, index.now, job))
    return jobs


def grant(index: Index, queues: Sequence[str], lease: str, ttl: int, holder: str) -> GrantResult:
    """Create a lease with the id `lease` on each queue, for `ttl` ms."""
    expires_at = index.now + ttl
    for name in queues:
        index.queue(name).put_lease(lease, Lease(holder, expires_at))
    return GrantResult(lease=lease, now=index.now, expires_at=expires_at)


def renew(index: Index, queues: Sequence[str], lease_id: str, ttl: int) -> dict[str, RenewResult]:
    """Extend a lease to `ttl` ms from now in each queue where it is alive, and never shorten it."""
    return {name: _renew(index, index.find_queue(name), lease_id, ttl) for name in queues}


def _renew(index: Index, queue: QueueIndex, lease_id: str, ttl: int) -> RenewResult:
    lease = queue.leases.get(lease_id)
    if lease is None or not lease.alive(index.now):
        return RenewResult(alive=False, now=index.now)
    expires_at = max(lease.expires_at, index.now + ttl)
    queue.put_lease(lease_id, replace(lease, expires_at=expires_at))
    held = queue.held.get(lease_id, {})
    requested = tuple(sorted(id for id in queue.cancel_requested if id in held))
    return RenewResult(alive=True, now=index.now, expires_at=expires_at, cancel_requested=requested)


def drop(index: Index, queues: Sequence[str], lease_id: str, limit: int) -> dict[str, int]:
    """Release up to `limit` jobs of a lease in each queue; return the number of jobs left under it."""
    return {name: _drop(index, index.find_queue(name), lease_id, limit) for name in queues}


def _drop(index: Index, queue: QueueIndex, lease_id: str, limit: int) -> int:
    lease = queue.leases.get(lease_id)
    if lease is None or lease.expires_at <= index.now:
        return 0
    for id in list(queue.held.get(lease_id, ()))[:limit]:
        settling.return_job(index, queue, id, stalled=False)
    left = len(queue.held.get(lease_id, ()))
    queue.put_lease(lease_id, replace(lease, dropped=True) if left else None)
    return left


def reap(index: Index, queue: str, limit: int) -> list[ReapedJob]:
    """Take up to `limit` jobs away from expired leases, so that they wait again.

    Each counts as stalled, except under a dropped lease, where it counts as released.
    """
    source = index.find_queue(queue)
    reaped: list[ReapedJob] = []
    while (lease_id := source.first_expired_lease(index.now)) is not None:
        stalled = not source.leases[lease_id].dropped
        for id in list(source.held.get(lease_id, ()))[: limit - len(reaped)]:
            fence = _current_fence(source, id)
            reaped.append(ReapedJob(id, fence, settling.return_job(index, source, id, stalled=stalled)))
        if source.held.get(lease_id):
            break
        source.put_lease(lease_id, None)
    return reaped


def _current_fence(queue: QueueIndex, id: str) -> int:
    job = queue.slots.get(id, EMPTY).current
    return job.run.fence if job is not None and job.run is not None else 0
