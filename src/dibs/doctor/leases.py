"""The check of leases: jobs whose worker is gone, and which no other worker returns to their queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from dibs.doctor.facts import Facts
from dibs.model.findings import Finding, Rule
from dibs.model.job import ActiveRun
from dibs.storage.protocol import Storage

#: Active jobs that are looked at in one queue, and leases in all.
MOST_JOBS: Final = 20
MOST_LEASES: Final = 200
#: Seconds until a second look. Workers look for expired leases every 0.8 s while jobs are active.
SECOND_LOOK: Final = 2.0

EXPIRED: Final = Rule(
    "leases-expired",
    "error",
    "The holders of these jobs are gone, and no worker returns the jobs to their queue: the ids stand still.",
    "Start a worker that serves the queue; it returns the jobs within a minute.",
)
RULES: Final = (EXPIRED,)

#: The runs under expired leases, by queue and id.
Suspects = dict[str, dict[str, ActiveRun]]


async def check_leases(storage: Storage, facts: Facts) -> AsyncIterator[Finding]:
    """Yield a finding for each queue whose jobs are under expired leases and stay there."""
    suspects = await _find_suspects(storage, facts)
    if not suspects:
        return
    await asyncio.sleep(SECOND_LOOK)
    for queue, runs in suspects.items():
        slots = await storage.get(queue, list(runs))
        current = [slot.current.run for slot in slots if slot.current is not None]
        fences = {run.fence for run in current if run is not None}
        holders = [run.holder for run in runs.values() if run.fence in fences]
        if not holders:
            continue
        names = ", ".join(sorted(set(holders))[:3])
        yield EXPIRED.finding(
            f"{len(holders)} of up to {MOST_JOBS} examined jobs are under expired leases, of {names}", queue
        )


async def _find_suspects(storage: Storage, facts: Facts) -> Suspects:
    """Return active jobs whose lease has expired."""
    alive: dict[tuple[str, str], bool] = {}
    suspects: Suspects = {}
    for queue, _, counts in facts.counted():
        if counts.active <= counts.handed_off:
            continue
        page = await storage.list(queue, "active", limit=MOST_JOBS)
        for id, slot in page.items:
            run = slot.current.run if slot.current is not None else None
            if run is None or run.lease is None or len(alive) >= MOST_LEASES:
                continue
            if (queue, run.lease) not in alive:
                # A renewal never shortens a lease, and cannot revive one.
                alive[queue, run.lease] = (await storage.renew([queue], run.lease, 1))[queue].alive
            if not alive[queue, run.lease]:
                suspects.setdefault(queue, {})[id] = run
    return suspects
