"""The methods claim, settle_and_claim, grant, renew, drop and reap.

A lease is the right of a worker to the jobs that it claims with it. It expires unless the worker renews it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, transitions
from dibs.model.job import Job, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, GrantResult, ReapedJob, RenewResult, SettleAndClaimResult
from dibs_sqlite import limits, settling
from dibs_sqlite.transaction import LeaseRow, QueueRows, Transaction

#: Larger than any limit of a claim.
NO_LIMIT = 2**62


def claim(tx: Transaction, name: str, lease_id: str, limit: int) -> ClaimResult:
    """Make up to `limit` due jobs active under a lease, fewer if max_active of the queue allows fewer.

    A lease that is unknown, expired or dropped claims no job and returns `lost`.
    """
    queue = tx.queue(name)
    lease = queue.lease(lease_id)
    token = f"{queue.work}.{tx.now}"
    if lease is None or lease.dropped:
        return ClaimResult(now=tx.now, token=token, lost=True)
    if queue.settings.paused:
        return ClaimResult(now=tx.now, token=token)
    free = min(limit, _free_slots(queue))
    if queue.settings.limits_claims or queue.scalar("any_filed"):
        slots = limits.admitted(tx, queue, free)
    else:
        slots = iter(queue.due(free))
    jobs = tuple(_claim_slot(tx, queue, lease, slot) for slot in slots)
    return ClaimResult(jobs=jobs, now=tx.now, next_due=limits.next_due(tx, queue), token=token)


def _free_slots(queue: QueueRows) -> int:
    """Return how many more jobs may be active under max_active."""
    max_active = queue.settings.max_active
    return NO_LIMIT if max_active is None else max(0, max_active - queue.scalar("count_active"))


def _claim_slot(tx: Transaction, queue: QueueRows, lease: LeaseRow, slot: Slot) -> Job:
    assert slot.current is not None, "the query `due` returns waiting jobs"  # noqa: S101
    job = transitions.claim(slot.current, tx.draw(), lease.id, lease.holder, tx.now)
    queue.put(job.id, slot, replace(slot, current=job))
    queue.log_event(events.note_event("claimed", job.id, tx.now, job))
    return job


def settle_and_claim(
    tx: Transaction, name: str, settlements: Sequence[Settlement], lease: str, limit: int, within: Limits
) -> SettleAndClaimResult:
    """Settle runs and claim jobs in one transaction."""
    settled = settling.settle(tx, name, settlements, within)
    return SettleAndClaimResult(tuple(settled), claim(tx, name, lease, limit))


def grant(tx: Transaction, names: Sequence[str], ttl: int, holder: str) -> GrantResult:
    """Create one lease with a new random id on each of the queues, for `ttl` ms."""
    lease = LeaseRow(secrets.token_hex(16), holder, tx.now + ttl)
    for name in names:
        tx.queue(name).put_lease(lease)
    return GrantResult(lease=lease.id, now=tx.now, expires_at=lease.expires_at)


def renew(tx: Transaction, names: Sequence[str], lease_id: str, ttl: int) -> dict[str, RenewResult]:
    """Extend a lease to `ttl` ms from now. A renewal never shortens a lease."""
    return {name: _renew(tx, tx.queue(name), lease_id, ttl) for name in names}


def _renew(tx: Transaction, queue: QueueRows, lease_id: str, ttl: int) -> RenewResult:
    lease = queue.lease(lease_id)
    if lease is None or lease.dropped:
        return RenewResult(alive=False, now=tx.now)
    lease = replace(lease, expires_at=max(lease.expires_at, tx.now + ttl))
    queue.put_lease(lease)
    ids = tuple(id for (id,) in queue.execute("cancel_requested_ids", lease=lease_id))
    return RenewResult(alive=True, now=tx.now, expires_at=lease.expires_at, cancel_requested=ids)


def drop(tx: Transaction, names: Sequence[str], lease_id: str, limit: int) -> dict[str, int]:
    """Release up to `limit` jobs of a lease in each queue. Return the number of jobs left under it.

    From the first call on, the lease is lost for claim and renew.
    """
    return {name: _drop(tx, tx.queue(name), lease_id, limit) for name in names}


def _drop(tx: Transaction, queue: QueueRows, lease_id: str, limit: int) -> int:
    lease = queue.lease(lease_id)
    if lease is None:
        return 0
    for id in queue.held_ids(lease_id, limit):
        settling.return_job(tx, queue, id, stalled=False)
    remaining: int = queue.scalar("count_held", lease=lease_id)
    if remaining:
        queue.put_lease(replace(lease, dropped=True))
    else:
        queue.execute("delete_lease", lease=lease_id)
    return remaining


def reap(tx: Transaction, name: str, limit: int) -> list[ReapedJob]:
    """Take up to `limit` jobs away from expired leases, so that they wait again.

    Each counts as stalled, except under a dropped lease, where it counts as released.
    """
    queue = tx.queue(name)
    reaped: list[ReapedJob] = []
    while (expired := queue.execute("expired_lease", now=tx.now).fetchone()) is not None:
        lease, dropped = expired
        for id in queue.held_ids(lease, limit - len(reaped)):
            fence, kind = settling.return_job(tx, queue, id, stalled=not dropped)
            reaped.append(ReapedJob(id, fence, kind))
        if queue.held_ids(lease, 1):
            break
        queue.execute("delete_lease", lease=lease)
    return reaped
