"""The capabilities: each claim is held against the storage, and a power nobody claimed is reported.

Whether a place survives its process, or takes two, is asked with a second process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from typing import Any, cast

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, FollowUp, Settlement
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import BlockingClaims, Clock, Storage
from dibs_conformance.concurrent.process_clients import context
from dibs_conformance.report import CapabilityReport
from dibs_conformance.sequential.unimplemented import missing_verb
from dibs_conformance.target import Locations, OpenStorage

#: Seconds in which a second process must have enqueued, also on a busy machine.
TIMEOUT = 180.0
POLLS = 40
#: A wait that returns this soon after a change, in s, was woken by it; a poll is slower. One of so many must.
PROMPT = 0.5
ATTEMPTS = 5
JOB = EnqueueRequest(job=NewJob(id="a"))


async def probe_capabilities(locations: Locations) -> tuple[Capabilities, str, list[CapabilityReport]]:
    """What the storage says of itself, and what was found."""
    async with locations.open(locations.new(), "system") as storage:
        claims, durability = storage.capabilities, storage.durability
    found = [
        await report_capability(name, getattr(claims, name), probe, locations)
        for name, probe in PROBES.items()
    ]
    return claims, durability, found


async def report_capability(
    name: str,
    claimed: bool,  # noqa: FBT001 - it is the value reported, not a switch
    probe: Callable[[Locations], Awaitable[bool | None]],
    locations: Locations,
) -> CapabilityReport:
    try:
        found = await probe(locations)
        return CapabilityReport(name=name, claimed=claimed, found=found, note=NOTES.get((name, found), ""))
    except Exception as error:  # noqa: BLE001 - a power that raises is none
        if (verb := missing_verb(error)) is not None:
            return CapabilityReport(name=name, claimed=claimed, found=None, note=f"{verb}() is not there yet")
        return CapabilityReport(
            name=name, claimed=claimed, found=False, note=f"{type(error).__name__}: {error}"
        )


async def is_durable(locations: Locations) -> bool | None:
    """Another process accepts a job and dies; is it there?"""
    location = locations.new()
    if not await asyncio.to_thread(enqueue_in_process, locations.target, location):
        return None
    return await holds_the_job(locations, location)


async def is_shared(locations: Locations) -> bool | None:
    """Another process accepts a job while this one has the place open; does this one see it?"""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        if not await asyncio.to_thread(enqueue_in_process, locations.target, location):
            return False
        return await appears(storage)


async def appears(storage: Storage) -> bool:
    """Look so often, with a pause between: about 2 s, and longer where the machine is busy."""
    for _ in range(POLLS):
        if (await storage.get("q", ["a"]))[0].current is not None:
            return True
        await asyncio.sleep(0.05)
    return False


async def holds_the_job(locations: Locations, location: str) -> bool:
    async with locations.open(location, "system") as storage:
        return (await storage.get("q", ["a"]))[0].current is not None


async def crosses_queues(locations: Locations) -> bool:
    """Complete with a follow-up in another queue."""
    async with claimed_job(locations) as (storage, fence):
        then = (FollowUp(queue="other", job=NewJob(id="a")),)
        [answer] = await storage.settle("q", [Settlement(id="a", fence=fence, action=Complete(then=then))])
        there = (await storage.get("other", ["a"]))[0].current is not None
        return answer.status == "done" and there


@asynccontextmanager
async def claimed_job(locations: Locations) -> AsyncIterator[tuple[Storage, int]]:
    async with locations.open(locations.new(), "system") as storage:
        await storage.enqueue("q", [JOB])
        granted = await storage.grant(["q"], 60_000, "kit")
        [job] = (await storage.claim("q", granted.lease, 1)).jobs
        yield storage, job.run.fence if job.run else 0


async def wakes_up(locations: Locations) -> bool:
    """Wait, and enqueue meanwhile. A busy machine may be late, but not every time."""
    for _ in range(ATTEMPTS):
        if await wakes_promptly(locations):
            return True
    return False


async def wakes_promptly(locations: Locations) -> bool:
    async with locations.open(locations.new(), "system") as storage:
        granted = await storage.grant(["q"], 60_000, "kit")
        token = (await storage.claim("q", granted.lease, 1)).token
        waiting = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=3))
        await asyncio.sleep(0.1)
        await storage.enqueue("q", [JOB])
        began = time.monotonic()
        wake = await waiting
        return wake.woken and time.monotonic() - began < PROMPT


async def blocks_claims(locations: Locations) -> bool:
    """Of two claims that are parked, one brings the job that comes, and the other, unparked, nothing."""
    async with locations.open(locations.new(), "system") as storage:
        if not hasattr(storage, "claim_blocking"):
            return False
        blocking = cast("BlockingClaims", storage)
        lease = (await storage.grant(["q"], 60_000, "kit")).lease
        names = ("one", "two")
        claims = {
            asyncio.create_task(blocking.claim_blocking("q", lease, 1, claim_id=name, timeout=TIMEOUT)): name
            for name in names
        }
        # Most storages have them by then; one that has not may make it when it comes, which is as well.
        if (await asyncio.wait(claims, timeout=0.1))[0]:
            return False
        await storage.enqueue("q", [JOB])
        async with asyncio.timeout(TIMEOUT / 2):
            [brought], [other] = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
            await blocking.wake_claim("q", claims[other])
            nothing = await other
        return [job.id for job in (await brought).jobs] == ["a"] and not nothing.jobs


async def takes_manual_clock(locations: Locations) -> bool:
    """With a manual clock `now` counts, and with the system's it is refused."""
    async with locations.open(locations.new(), "manual") as storage:
        granted = await storage.grant(["q"], 5, "kit", now=1000)
    async with locations.open(locations.new(), "system") as storage:
        with contextlib.suppress(Refused):
            await storage.enqueue("q", [JOB], now=1000)
            return False
    return granted.expires_at == 1005


async def joins_transactions(locations: Locations) -> bool | None:
    """Enqueue and settle on a connection of one's own: a rollback takes them back, a commit keeps them."""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        in_transaction = getattr(storage, "in_transaction", None)
        connecting = None if in_transaction is None else locations.connect(location)
        if in_transaction is None or connecting is None:
            return None if in_transaction is not None else False
        async with connecting as connection:
            return await in_transactions(storage, in_transaction(connection), connection)


async def in_transactions(storage: Storage, joined: Any, connection: Any) -> bool:
    """Tell whether each verb follows the transaction it is in, and nobody else sees it before."""
    kept = []
    for end in (connection.rollback, connection.commit):
        await joined.enqueue("q", [JOB])
        before = (await storage.get("q", ["a"]))[0].current
        await end()
        kept += [before is not None, (await storage.get("q", ["a"]))[0].current is not None]
    lease = (await storage.grant(["q"], 60_000, "kit")).lease
    [job] = (await storage.claim("q", lease, 1)).jobs
    done = [Settlement(id="a", fence=job.run.fence if job.run else 0, action=Complete())]
    for end in (connection.rollback, connection.commit):
        await joined.settle("q", done)
        await end()
        kept.append((await storage.get("q", ["a"]))[0].outcome is not None)
    return kept == [False, False, False, True, False, True]


#: What is said beside an answer that needs a word.
NOTES: dict[tuple[str, bool | None], str] = {
    (
        "transactions",
        None,
    ): "the kit has no connection: offer connect_url(url) beside your factory, or connect(place)",
    ("durable", None): "a process that opened the place did not get to enqueue",
}

PROBES: dict[str, Callable[[Locations], Awaitable[bool | None]]] = {
    "durable": is_durable,
    "shared": is_shared,
    "cross_queue": crosses_queues,
    "push_wakeups": wakes_up,
    "manual_clock": takes_manual_clock,
    "blocking_claim": blocks_claims,
    "transactions": joins_transactions,
}


# -- the second process ------------------------------------------------------------------------------


def enqueue_in_process(target: str | OpenStorage, location: str) -> bool:
    """Enqueue in a process of its own that dies without closing; tell whether it got that far."""
    child: BaseProcess = context().Process(  # type: ignore[attr-defined]
        target=enqueue_and_die, args=(target, location)
    )
    child.start()
    child.join(TIMEOUT)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode == 0


def enqueue_and_die(target: str | OpenStorage, location: str) -> None:
    try:
        asyncio.run(enqueue_and_exit(target, location, "system"))
    finally:
        os._exit(1)


async def enqueue_and_exit(target: str | OpenStorage, location: str, clock: Clock) -> None:
    async with Locations(target).open(location, clock) as storage:
        await storage.enqueue("q", [JOB])
        os._exit(0)
