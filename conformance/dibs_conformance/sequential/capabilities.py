"""Probes of the capabilities. Each one tries a capability, also if the storage does not claim it.

A probe returns True if the capability works, False if not, and None if the probe could not try it. The probes
of `durable` and `shared` use a second process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from multiprocessing.process import BaseProcess
from typing import Any, cast

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import BlockingClaims, Clock, Storage
from dibs_conformance.answer_types import missing_verb
from dibs_conformance.concurrent.process_clients import process_context
from dibs_conformance.loop_runner import LIMITS, NO_EXCEPTIONS
from dibs_conformance.report import CapabilityReport
from dibs_conformance.report.exceptions import error_text
from dibs_conformance.sequential.clocks import SHIFT, shifted_clock
from dibs_conformance.sequential.limit_probes import obeys_limits
from dibs_conformance.sequential.many_queues import serves_many_queues
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.sequential.waits import missing_wake_ups
from dibs_conformance.target import Locations, OpenStorage

#: Seconds that a second process has to enqueue. A busy machine may need many of them.
TIMEOUT = 180.0
POLLS = 40
JOB = EnqueueRequest(job=NewJob(id="a"))


async def probe_capabilities(locations: Locations) -> tuple[Capabilities, str, list[CapabilityReport]]:
    """Return the capabilities that the storage claims, its durability, and the result of each probe."""
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
    """Run one probe and return its report. If the probe raises, the capability counts as not found."""
    try:
        async with asyncio.timeout(LIMITS.test / 2):
            found = await probe(locations)
        return CapabilityReport(name=name, claimed=claimed, found=found, note=NOTES.get((name, found), ""))
    except (Exception, *NO_EXCEPTIONS) as error:  # noqa: BLE001 - so the capability does not work
        if (verb := missing_verb(error)) is not None:
            return CapabilityReport(name=name, claimed=claimed, found=None, note=f"{verb}() is missing")
        return CapabilityReport(name=name, claimed=claimed, found=False, note=error_text(error))


async def is_durable(locations: Locations) -> bool | None:
    """Return whether a job survives the death of the process that enqueued it.

    Return None if that process could not enqueue.
    """
    location = locations.new()
    if not await asyncio.to_thread(enqueue_in_process, locations.target, location):
        return None
    return await holds_the_job(locations, location)


async def is_shared(locations: Locations) -> bool | None:
    """Return whether a job appears here that another process enqueues at the same location."""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        if not await asyncio.to_thread(enqueue_in_process, locations.target, location):
            return False
        return await job_appears(storage)


async def job_appears(storage: Storage) -> bool:
    """Return whether job `a` exists after at most POLLS reads, one every 50 ms."""
    for _ in range(POLLS):
        if (await storage.get("q", ["a"]))[0].current is not None:
            return True
        await asyncio.sleep(0.05)
    return False


async def holds_the_job(locations: Locations, location: str) -> bool:
    """Open a storage at the location and return whether it has job `a`."""
    async with locations.open(location, "system") as storage:
        return (await storage.get("q", ["a"]))[0].current is not None


async def crosses_queues(locations: Locations) -> bool:
    """Return whether a settlement can enqueue a follow-up in another queue."""
    async with locations.open(locations.new(), "system") as storage:
        steps = "enqueue a; grant 60000; claim 1; complete a then=other>a"
        await play_steps(storage, HistoryCalls("q"), steps)
        [ended], [there] = await storage.get("q", ["a"]), await storage.get("other", ["a"])
        return ended.outcome is not None and there.current is not None


class MissingWakeUps(Exception):
    """Some changes end no wait, although an enqueue does."""


async def wakes_up(locations: Locations) -> bool:
    """Return whether each change of the contract wakes a waiter promptly.

    Raise MissingWakeUps if an enqueue wakes a waiter, and some other changes do not.
    """
    async with locations.open(locations.new(), "system") as storage:
        shared = storage.capabilities.shared
    missing = await missing_wake_ups(locations, shared=shared)
    if missing and missing[0] == "a wait for work after enqueue by the same client":
        return False
    if missing:
        raise MissingWakeUps(f"{len(missing)} changes ended no wait, among them {'; '.join(missing[:3])}")
    return True


async def blocks_claims(locations: Locations) -> bool:
    """Return whether blocking claims wait for a job, and for `wake_claim`.

    Of two blocking claims, one must get the new job. The other one must return without jobs after its
    `wake_claim`.
    """
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
        # By now most storages have received both claims. A storage that receives one later may claim at once,
        # which is correct too.
        if (await asyncio.wait(claims, timeout=0.1))[0]:
            return False
        await storage.enqueue("q", [JOB])
        async with asyncio.timeout(TIMEOUT / 2):
            [brought], [other] = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
            await blocking.wake_claim("q", claims[other])
            nothing = await other
        return [job.id for job in (await brought).jobs] == ["a"] and not nothing.jobs


async def takes_manual_clock(locations: Locations) -> bool:
    """Return whether calls use `now` with a manual clock, and refuse it with the system clock."""
    async with locations.open(locations.new(), "manual") as storage:
        granted = await storage.grant(["q"], 5, "kit", now=1000)
    async with locations.open(locations.new(), "system") as storage:
        with contextlib.suppress(Refused):
            await storage.enqueue("q", [JOB], now=1000)
            return False
    return granted.expires_at == 1005


async def keeps_server_clock(locations: Locations) -> bool:
    """Return whether the clock of a client has no influence on the time of the storage."""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        right = (await storage.grant(["q"], 60_000, "kit")).now
        with shifted_clock(SHIFT):
            times = [(await storage.grant(["q"], 60_000, "kit")).now]
            async with locations.open(location, "system") as other:
                times.append((await other.grant(["q"], 60_000, "kit")).now)
    return max(times) - right < SHIFT / 2


async def joins_transactions(locations: Locations) -> bool | None:
    """Return whether enqueue and settle follow a transaction of the caller.

    Return None if the target offers no database connection to the kit.
    """
    location = locations.new()
    async with locations.open(location, "system") as storage:
        in_transaction = getattr(storage, "in_transaction", None)
        connecting = None if in_transaction is None else locations.connect(location)
        if in_transaction is None or connecting is None:
            return None if in_transaction is not None else False
        async with connecting as connection:
            return await verbs_follow_transactions(storage, in_transaction(connection), connection)


async def verbs_follow_transactions(storage: Storage, joined: Any, connection: Any) -> bool:
    """Return whether enqueue and settle have no effect before the commit, and none after a rollback."""
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


#: Notes for results that need an explanation, by capability and result.
NOTES: dict[tuple[str, bool | None], str] = {
    (
        "transactions",
        None,
    ): "the kit has no connection: offer connect_url(url) beside your factory, or connect(place)",
    ("durable", None): "a second process opened the location and could not enqueue",
}

PROBES: dict[str, Callable[[Locations], Awaitable[bool | None]]] = {
    "durable": is_durable,
    "shared": is_shared,
    "cross_queue": crosses_queues,
    "push_wakeups": wakes_up,
    "manual_clock": takes_manual_clock,
    "server_clock": keeps_server_clock,
    "blocking_claim": blocks_claims,
    "limits": obeys_limits,
    "many_queues": serves_many_queues,
    "transactions": joins_transactions,
}


# -- second process ----------------------------------------------------------------------------------


def enqueue_in_process(target: str | OpenStorage, location: str) -> bool:
    """Enqueue job `a` in a new process that exits without closing its storage. Return whether it enqueued."""
    child: BaseProcess = process_context().Process(  # type: ignore[attr-defined]
        target=enqueue_and_die, args=(target, location)
    )
    child.start()
    child.join(TIMEOUT)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode == 0


def enqueue_and_die(target: str | OpenStorage, location: str) -> None:
    """Enqueue job `a`, then exit at once with code 0. Exit with code 1 after an error."""
    try:
        asyncio.run(enqueue_and_exit(target, location, "system"))
    finally:
        os._exit(1)


async def enqueue_and_exit(target: str | OpenStorage, location: str, clock: Clock) -> None:
    async with Locations(target).open(location, clock) as storage:
        await storage.enqueue("q", [JOB])
        os._exit(0)
