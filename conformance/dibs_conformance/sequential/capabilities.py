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
from dibs_conformance.target import OpenStorage, Places

#: Seconds in which a second process must have enqueued, also on a busy machine.
PATIENCE = 180.0
LOOKS = 40
#: A wait that returns this soon after a change, in s, was woken by it; a poll is slower. One of so many must.
PROMPT = 0.5
ATTEMPTS = 5
JOB = EnqueueRequest(job=NewJob(id="a"))


async def powers(places: Places) -> tuple[Capabilities, str, list[CapabilityReport]]:
    """What the storage says of itself, and what was found."""
    async with places.open(places.new(), "system") as storage:
        claims, durability = storage.capabilities, storage.durability
    found = [await tried(name, getattr(claims, name), ask, places) for name, ask in QUESTIONS.items()]
    return claims, durability, found


async def tried(
    name: str,
    claimed: bool,  # noqa: FBT001 - it is the value reported, not a switch
    ask: Callable[[Places], Awaitable[bool | None]],
    places: Places,
) -> CapabilityReport:
    try:
        found = await ask(places)
        return CapabilityReport(name=name, claimed=claimed, found=found, note=NOTES.get((name, found), ""))
    except Exception as error:  # noqa: BLE001 - a power that raises is none
        if (verb := missing_verb(error)) is not None:
            return CapabilityReport(name=name, claimed=claimed, found=None, note=f"{verb}() is not there yet")
        return CapabilityReport(
            name=name, claimed=claimed, found=False, note=f"{type(error).__name__}: {error}"
        )


async def survives(places: Places) -> bool | None:
    """Another process accepts a job and dies; is it there?"""
    place = places.new()
    if not await asyncio.to_thread(in_child, places.target, place):
        return None
    return await holds_the_job(places, place)


async def takes_two(places: Places) -> bool | None:
    """Another process accepts a job while this one has the place open; does this one see it?"""
    place = places.new()
    async with places.open(place, "system") as storage:
        if not await asyncio.to_thread(in_child, places.target, place):
            return False
        return await appears(storage)


async def appears(storage: Storage) -> bool:
    """Look so often, with a pause between: about 2 s, and longer where the machine is busy."""
    for _ in range(LOOKS):
        if (await storage.get("q", ["a"]))[0].current is not None:
            return True
        await asyncio.sleep(0.05)
    return False


async def holds_the_job(places: Places, place: str) -> bool:
    async with places.open(place, "system") as storage:
        return (await storage.get("q", ["a"]))[0].current is not None


async def crosses(places: Places) -> bool:
    """Complete with a follow-up in another queue."""
    async with held(places) as (storage, fence):
        then = (FollowUp(queue="other", job=NewJob(id="a")),)
        [answer] = await storage.settle("q", [Settlement(id="a", fence=fence, action=Complete(then=then))])
        there = (await storage.get("other", ["a"]))[0].current is not None
        return answer.status == "done" and there


@asynccontextmanager
async def held(places: Places) -> AsyncIterator[tuple[Storage, int]]:
    async with places.open(places.new(), "system") as storage:
        await storage.enqueue("q", [JOB])
        granted = await storage.grant(["q"], 60_000, "kit")
        [job] = (await storage.claim("q", granted.lease, 1)).jobs
        yield storage, job.run.fence if job.run else 0


async def wakes(places: Places) -> bool:
    """Wait, and enqueue meanwhile. A busy machine may be late, but not every time."""
    for _ in range(ATTEMPTS):
        if await wakes_promptly(places):
            return True
    return False


async def wakes_promptly(places: Places) -> bool:
    async with places.open(places.new(), "system") as storage:
        granted = await storage.grant(["q"], 60_000, "kit")
        token = (await storage.claim("q", granted.lease, 1)).token
        waiting = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=3))
        await asyncio.sleep(0.1)
        await storage.enqueue("q", [JOB])
        began = time.monotonic()
        wake = await waiting
        return wake.woken and time.monotonic() - began < PROMPT


async def parks(places: Places) -> bool:
    """Of two claims that are parked, one brings the job that comes, and the other, unparked, nothing."""
    async with places.open(places.new(), "system") as storage:
        if not hasattr(storage, "claim_blocking"):
            return False
        parking = cast("BlockingClaims", storage)
        lease = (await storage.grant(["q"], 60_000, "kit")).lease
        names = ("one", "two")
        claims = {
            asyncio.create_task(parking.claim_blocking("q", lease, 1, claim_id=name, timeout=PATIENCE)): name
            for name in names
        }
        # Most storages have them by then; one that has not may make it when it comes, which is as well.
        if (await asyncio.wait(claims, timeout=0.1))[0]:
            return False
        await storage.enqueue("q", [JOB])
        async with asyncio.timeout(PATIENCE / 2):
            [brought], [other] = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
            await parking.wake_claim("q", claims[other])
            nothing = await other
        return [job.id for job in (await brought).jobs] == ["a"] and not nothing.jobs


async def takes_now(places: Places) -> bool:
    """With a manual clock `now` counts, and with the system's it is refused."""
    async with places.open(places.new(), "manual") as storage:
        granted = await storage.grant(["q"], 5, "kit", now=1000)
    async with places.open(places.new(), "system") as storage:
        with contextlib.suppress(Refused):
            await storage.enqueue("q", [JOB], now=1000)
            return False
    return granted.expires_at == 1005


async def joins(places: Places) -> bool | None:
    """Enqueue and settle on a connection of one's own: a rollback takes them back, a commit keeps them."""
    place = places.new()
    async with places.open(place, "system") as storage:
        in_transaction = getattr(storage, "in_transaction", None)
        connecting = None if in_transaction is None else places.connect(place)
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

QUESTIONS: dict[str, Callable[[Places], Awaitable[bool | None]]] = {
    "durable": survives,
    "shared": takes_two,
    "cross_queue": crosses,
    "push_wakeups": wakes,
    "manual_clock": takes_now,
    "blocking_claim": parks,
    "transactions": joins,
}


# -- the second process ------------------------------------------------------------------------------


def in_child(target: str | OpenStorage, place: str) -> bool:
    """Enqueue in a process of its own that dies without closing; tell whether it got that far."""
    child: BaseProcess = context().Process(  # type: ignore[attr-defined]
        target=enqueue_and_die, args=(target, place)
    )
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode == 0


def enqueue_and_die(target: str | OpenStorage, place: str) -> None:
    try:
        asyncio.run(enqueue_there(target, place, "system"))
    finally:
        os._exit(1)


async def enqueue_there(target: str | OpenStorage, place: str, clock: Clock) -> None:
    async with Places(target).open(place, clock) as storage:
        await storage.enqueue("q", [JOB])
        os._exit(0)
