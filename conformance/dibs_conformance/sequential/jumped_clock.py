"""Test that the time of a storage goes on after its clock was ahead once.

The kit cannot move the clock of a server. Instead it opens a location with a manual clock, and writes a job
at a time that lies an hour ahead. Then it opens the same location with the system's clock. For the storage,
its clock has been set back by an hour. So the test needs no means of the storage beyond a manual clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs_conformance.target import Locations

#: The name, the section and the sentence of the law.
LAW: Final = (
    "time goes on after a clock was ahead",
    "1, Time",
    "If the clock is set back, time goes on from the highest time that was seen.",
)
#: The number of ms by which the clock was ahead.
AHEAD: Final = 3_600_000
#: Time to live in ms of the lease that the test watches. It expires unless the time stands still.
TTL: Final = 50
#: Seconds after which an unexpired lease of TTL ms means that time stands still.
PATIENCE: Final = 10.0
#: The ms by which the time of the storage and the kit's clock may differ.
SLACK: Final = 1_000


async def check_jumped_clock(locations: Locations, *, durable: bool) -> tuple[int, list[str]] | None:
    """Return the number of checks and each wrong result.

    Return None for a storage that is not durable and does not show the time of another opening.
    """
    highest = time.time_ns() // 1_000_000 + AHEAD
    async with opened_after_jump(locations, highest, durable=durable) as storage:
        began = time.monotonic_ns()
        granted = await storage.grant(["q"], TTL, "kit")
        if granted.now < highest and not durable:
            return None
        if granted.now < highest:
            return 1, [f"a step at {highest} was committed, and after an opening the time was {granted.now}"]
        taken, ended = await claim_until_lost(storage, granted.lease)
        if ended is None:
            return 1, [f"after a step at {highest}, a lease of {TTL} ms was alive for {PATIENCE:.0f} s"]
        passed = (time.monotonic_ns() - began) // 1_000_000
        wrong = []
        if ended - granted.now > passed + SLACK:
            wrong.append(f"{ended - granted.now} ms passed in the storage while {passed} ms really passed")
        if [job.id for job in await storage.reap("q", 10)] != taken:
            wrong.append(f"after a step at {highest}, reap did not return the jobs {taken} of an ended lease")
        return 3, wrong


@asynccontextmanager
async def opened_after_jump(locations: Locations, highest: int, *, durable: bool) -> AsyncIterator[Storage]:
    """Yield a storage in which a job was enqueued at the time `highest`, now with the system's clock."""
    location = locations.new()
    async with locations.open(location, "manual") as ahead:
        await ahead.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=highest)
        if not durable:
            # The jobs of this storage may end with its last user, so it stays open.
            async with locations.open(location, "system") as storage:
                yield storage
            return
    async with locations.open(location, "system") as storage:
        yield storage


async def claim_until_lost(storage: Storage, lease: str) -> tuple[list[str], int | None]:
    """Claim under a lease until it is lost. Return the claimed ids and the time of the last claim.

    The time is None if the lease is alive after PATIENCE seconds.
    """
    taken: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        claimed = await storage.claim("q", lease, 1)
        if claimed.lost:
            return taken, claimed.now
        taken += [job.id for job in claimed.jobs]
        await asyncio.sleep(TTL / 1000)
    return taken, None
