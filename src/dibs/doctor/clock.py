"""The check of clocks: that of this machine against the time of the storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from dibs.client.stored_schedules import UNUSED_LEASE
from dibs.model.findings import Finding, Rule
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage

#: Difference of two clocks that is a finding, in ms, beside the time of the request.
LARGEST_DIFFERENCE: Final = 1_000

DIFFERS: Final = Rule(
    "clock-differs",
    "warning",
    "Delays and leases are right, since the storage measures them. Absolute times of this machine, such as "
    "run_at, start_by and the ages that commands print, are off by the difference.",
    "Synchronize the clocks of this machine and of the server by NTP. If both are right, the storage has a "
    "lead, as docs/howto/correct_the_clock.md explains.",
)
LEAD: Final = Rule(
    "clock-lead",
    "warning",
    "The clock of this machine was ahead once, and the storage goes on from that time: absolute times and "
    "cron ticks come early by the difference.",
    "docs/howto/correct_the_clock.md says how to end a lead.",
)
RULES: Final = (DIFFERS, LEAD)


async def check_clock(storage: Storage, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Return a finding if the storage's time differs from `clock`, which returns seconds since the epoch."""
    before = clock() * 1000
    now = (await storage.renew([WORKERS_QUEUE], UNUSED_LEASE, 1))[WORKERS_QUEUE].now
    after = clock() * 1000
    difference = max(now - after, before - now)
    if difference <= LARGEST_DIFFERENCE:
        return iter(())
    rule = DIFFERS if storage.capabilities.server_clock else LEAD
    side = "ahead of" if now > after else "behind"
    return iter([rule.finding(f"the time of the storage is {difference / 1000:,.1f} s {side} this machine")])
