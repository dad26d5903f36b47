"""Verbs that hand jobs out: claim, and the leases that claims are under."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from dibs.model import events, transitions
from dibs.model.job import Job
from dibs.model.limits import Limits
from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, GrantResult, ReapedJob, RenewResult, SettleAndClaimResult
from dibs_sqlite import settling
from dibs_sqlite.step import Lease, Queue, Step

#: More than any lease holds, for queries that take a limit.
ALL = 2**62


def claim(step: Step, name: str, lease_id: str, limit: int) -> ClaimResult:
    """Make due jobs active under a lease."""
    queue = step.queue(name)
    lease = queue.lease(lease_id)
    token = f"{queue.work}.{step.now}"
    if lease is None or lease.dropped:
        return ClaimResult(now=step.now, token=token, lost=True)
    if queue.settings.paused:
        return ClaimResult(now=step.now, token=token)
    jobs = tuple(_take(step, queue, lease, min(limit, _room(queue))))
    return ClaimResult(jobs=jobs, now=step.now, next_due=queue.one("next_due", now=step.now), token=token)


def _room(queue: Queue) -> int:
    """Return how many more jobs max_active lets be claimed."""
    most = queue.settings.max_active
    return ALL if most is None else max(0, most - queue.one("active"))


def _take(step: Step, queue: Queue, lease: Lease, limit: int) -> list[Job]:
    jobs = []
    for slot in queue.due(limit):
        assert slot.current is not None, "what is due waits"  # noqa: S101
        job = transitions.claim(slot.current, step.draw(), lease.id, lease.holder, step.now)
        queue.put(job.id, slot, structs.replace(slot, current=job))
        queue.tell(events.note_event("claimed", job.id, step.now, job))
        jobs.append(job)
    return jobs


def settle_and_claim(
    step: Step, name: str, settlements: Sequence[Settlement], lease: str, limit: int, limits: Limits
) -> SettleAndClaimResult:
    """Settle, then claim."""
    settled = settling.settle(step, name, settlements, limits)
    return SettleAndClaimResult(tuple(settled), claim(step, name, lease, limit))


def grant(step: Step, names: Sequence[str], ttl: int, holder: str) -> GrantResult:
    """Create a lease on each queue."""
    lease = Lease(secrets.token_hex(16), holder, step.now + ttl)
    for name in names:
        step.queue(name).put_lease(lease)
    return GrantResult(lease=lease.id, now=step.now, expires_at=lease.expires_at)


def renew(step: Step, names: Sequence[str], lease_id: str, ttl: int) -> dict[str, RenewResult]:
    """Move the end of a lease, never to an earlier time."""
    return {name: _renew(step, step.queue(name), lease_id, ttl) for name in names}


def _renew(step: Step, queue: Queue, lease_id: str, ttl: int) -> RenewResult:
    lease = queue.lease(lease_id)
    if lease is None or lease.dropped:
        return RenewResult(alive=False, now=step.now)
    lease = replace(lease, expires_at=max(lease.expires_at, step.now + ttl))
    queue.put_lease(lease)
    asked = tuple(id for (id,) in queue.query("asked", lease=lease_id))
    return RenewResult(alive=True, now=step.now, expires_at=lease.expires_at, cancel_requested=asked)


def drop(step: Step, names: Sequence[str], lease_id: str, limit: int) -> dict[str, int]:
    """Release jobs of a lease, which is lost from now on; tell how many are left."""
    return {name: _drop(step, step.queue(name), lease_id, limit) for name in names}


def _drop(step: Step, queue: Queue, lease_id: str, limit: int) -> int:
    lease = queue.lease(lease_id)
    if lease is None:
        return 0
    for id in queue.held(lease_id, limit):
        settling.give_back(step, queue, id, stalled=False)
    left: int = queue.one("left", lease=lease_id)
    if left:
        queue.put_lease(replace(lease, dropped=True))
    else:
        queue.query("remove_lease", lease=lease_id)
    return left


def reap(step: Step, name: str, limit: int) -> list[ReapedJob]:
    """Bring back jobs under expired leases."""
    queue = step.queue(name)
    reaped: list[ReapedJob] = []
    while (expired := queue.query("expired_lease", now=step.now).fetchone()) is not None:
        lease, dropped = expired
        for id in queue.held(lease, limit - len(reaped)):
            fence, kind = settling.give_back(step, queue, id, stalled=not dropped)
            reaped.append(ReapedJob(id, fence, kind))
        if queue.held(lease, 1):
            break
        queue.query("remove_lease", lease=lease)
    return reaped
