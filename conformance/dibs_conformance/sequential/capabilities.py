"""Probes of the capabilities. Each one tries a capability, also if the storage does not claim it.

A probe returns True if the capability works, False if not, and None if the probe could not try it. The probes
of `durable` and `shared` use a second process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol, cast

from dibs.errors import Refused
from dibs.model.job import Job, NewJob
from dibs.model.requests import Complete, EnqueueRequest, QueueStep, SettingsPatch, Settlement, StartRate
from dibs.model.results import ClaimResult
from dibs.storage.abilities import ManyQueues
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import BlockingClaims, Clock, Storage
from dibs_conformance.answer_types import missing_verb
from dibs_conformance.concurrent.process_clients import process_context
from dibs_conformance.loop_runner import LIMITS, NO_EXCEPTIONS
from dibs_conformance.report import CapabilityReport
from dibs_conformance.report.exceptions import error_text
from dibs_conformance.sequential.clocks import SHIFT, shifted_clock
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.sequential.waits import missing_wake_ups
from dibs_conformance.target import Locations, OpenStorage

DAY: Final = 86_400_000
#: The most wake-ups of a wait.
MOST_WAKE_UPS: Final = 5
#: The interval of the rate of the blocking claims in ms, and the seconds after which they give up.
OPENING: Final = 300
BLOCKING_SECONDS: Final = 20.0

#: Limits that allow one start of a key in the time of a test.
ONE_START: Final = {"per_key": "1", "rate": f"1/{DAY}", "key_rate": f"1/{DAY}"}


async def obeys_limits(locations: Locations) -> bool:
    """Return whether claims obey the settings `per_key`, `rate` and `key_rate`. Blocking claims also obey."""
    async with locations.open(locations.new(), "system") as storage:
        if not all([await obeys_limit(storage, name, value) for name, value in ONE_START.items()]):
            return False
        if not storage.capabilities.blocking_claim:
            return True
        blocking = cast("BlockingStorage", storage)
        return await blocks_until_room(blocking) and await blocks_until_opening(blocking)


async def obeys_limit(storage: Storage, name: str, value: str) -> bool:
    """Return whether a claim takes one of two jobs of a key, and the other one when the limit is lifted."""
    calls = HistoryCalls(name)
    with contextlib.suppress(Refused):
        await play_steps(storage, calls, f"set {name}={value}; enqueue a:k b:k; grant; first = claim")
        await play_steps(storage, calls, f"set {name}=none; second = claim")
        return [list(calls.saved[runs]) for runs in ("first", "second")] == [["a"], ["b"]]
    return False


async def takes_turns(locations: Locations) -> bool:
    """Return whether claims obey the settings `fair` and `shares`."""
    async with locations.open(locations.new(), "system") as storage:
        calls = HistoryCalls("turns")
        with contextlib.suppress(Refused):
            await play_steps(
                storage, calls, "set fair=yes shares=m:0; enqueue a:k b:k c:m d; grant; first = claim"
            )
            await play_steps(storage, calls, "set shares=m:none; second = claim")
            return [list(calls.saved[runs]) for runs in ("first", "second")] == [["a", "d", "b"], ["c"]]
        return False


async def keeps_output(locations: Locations) -> bool:
    """Return whether a report takes chunks, and `events` returns them for their id."""
    async with locations.open(locations.new(), "system") as storage:
        calls = HistoryCalls("output")
        with contextlib.suppress(Refused):
            await play_steps(storage, calls, "enqueue a; grant; claim; report a output=one+two")
            page = await storage.events("output", id="a")
            return [event.result for _, event in page.events] == [b"one", b"two"]
        return False


class BlockingStorage(Storage, BlockingClaims, Protocol):
    """A storage with the capability `blocking_claim`."""


async def blocks_until_room(storage: BlockingStorage) -> bool:
    """Return whether blocking claims wait while a key is full, and take its job when it has room."""
    calls = HistoryCalls("blocking per_key")
    await play_steps(storage, calls, "set per_key=1; enqueue a:k b:k; grant; claim")
    task = asyncio.create_task(claim_one(storage, calls.queue, calls.lease))
    if (await asyncio.wait([task], timeout=0.1))[0]:
        return False
    await play_steps(storage, calls, "complete a")
    return [job.id for job in await task] == ["b"]


async def blocks_until_opening(storage: BlockingStorage) -> bool:
    """Return whether blocking claims start runs at a rate, and no later.

    As a worker does, each claim waits until the `next_due` of the claim before it.
    """
    queue = "blocking rate"
    await storage.configure(queue, SettingsPatch(rate=StartRate(1, OPENING)))
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in "ab"])
    lease = (await storage.grant([queue], 600_000, "kit")).lease
    first = await storage.claim(queue, lease, 1)
    due_in = 0 if first.next_due is None else (first.next_due - first.now) / 1000
    second = await claim_one(storage, queue, lease, due_in)
    starts = [job.run.claimed_at for job in (*first.jobs, *second) if job.run is not None]
    return due_in > 0 and len(starts) == 2 and starts[1] - starts[0] >= OPENING


async def claim_one(
    storage: BlockingStorage, queue: str, lease: str, seconds: float = BLOCKING_SECONDS
) -> Sequence[Job]:
    """Make blocking claims until one takes a job. A few of them may end early."""
    for number in range(1 + MOST_WAKE_UPS):
        id = f"{queue}-{number}".replace(" ", "-")
        jobs = (await storage.claim_blocking(queue, lease, 1, claim_id=id, timeout=seconds)).jobs
        if jobs:
            return jobs
    return ()


TTL: Final = 60_000
#: Seconds for which a blocking claim must wait without a change.
QUIET_SECONDS: Final = 0.2
QUEUES: Final = ("q", "r", "s", "t:{u}")


class ServingStorage(Storage, ManyQueues, BlockingClaims, Protocol):
    """A storage with the capabilities `many_queues` and `blocking_claim`."""


async def serves_many_queues(locations: Locations) -> bool:
    """Return whether one `serve` claims and settles in two queues, and a blocking claim waits for several."""
    async with locations.open(locations.new(), "system") as storage:
        if not hasattr(storage, "serve"):
            return False
        serving = cast("ServingStorage", storage)
        if not await serves_two_queues(serving):
            return False
        return not storage.capabilities.blocking_claim or await blocks_for_any(serving)


async def serves_two_queues(storage: ServingStorage) -> bool:
    """Return whether a `serve` claims in two queues, and the next one settles in the first of them."""
    lease = (await storage.grant(["q", "r"], TTL, "kit")).lease
    for queue in ("q", "r"):
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=queue))])
    claimed = await storage.serve([QueueStep("r", limit=1), QueueStep("q", limit=1)], lease)
    if [ids_of(step.claim) for step in claimed] != [["r"], ["q"]]:
        return False
    [step] = await storage.serve([QueueStep("r", ends_of(claimed[0].claim))], lease)
    return [result.status for result in step.settled] == ["done"] and not step.claim.jobs


async def blocks_for_any(storage: ServingStorage) -> bool:
    """Return whether a blocking claim of several queues waits, and a change of each of them ends it.

    `wake_claim` with each of the queues must end it, too, and two claims must not take the same job.
    """
    lease = (await storage.grant(QUEUES, TTL, "kit")).lease
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BLOCKING_SECONDS):
            return (
                await waits_without_changes(storage, lease)
                and all([await wakes_by_job(storage, lease, queue) for queue in QUEUES])
                and all([await ends_by_name(storage, lease, queue) for queue in QUEUES])
                and await shares_jobs(storage, lease)
                and await takes_up_to_limit(storage, lease)
            )
    return False


async def waits_without_changes(storage: ServingStorage, lease: str) -> bool:
    """Return whether blocking claims wait, apart from a few that end early."""
    for number in range(MOST_WAKE_UPS):
        claim = start_claim(storage, lease, f"quiet-{number}")
        if not (await asyncio.wait([claim], timeout=QUIET_SECONDS))[0]:
            await storage.wake_claim(QUEUES[0], f"quiet-{number}")
            return not jobs_of(await claim)
    return False


async def wakes_by_job(storage: ServingStorage, lease: str, queue: str) -> bool:
    """Return whether a job of one queue ends the claim, and the claim takes it."""
    taking = asyncio.create_task(take(storage, lease, f"job-{QUEUES.index(queue)}"))
    await asyncio.wait([taking], timeout=QUIET_SECONDS / 2)
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="woken"))])
    return await taking == {queue: ["woken"]}


async def ends_by_name(storage: ServingStorage, lease: str, queue: str) -> bool:
    claim = start_claim(storage, lease, f"named-{QUEUES.index(queue)}")
    await asyncio.wait([claim], timeout=QUIET_SECONDS / 2)
    await storage.wake_claim(queue, f"named-{QUEUES.index(queue)}")
    return not jobs_of(await claim)


async def shares_jobs(storage: ServingStorage, lease: str) -> bool:
    """Return whether two claims with the limit 2 take the four jobs of one enqueue, each job once.

    The first claim reaches its limit and must release the second one.
    """
    taking = [asyncio.create_task(take(storage, lease, f"share-{number}", 2)) for number in range(2)]
    await asyncio.wait(taking, timeout=QUIET_SECONDS / 2)
    await storage.enqueue("r", [EnqueueRequest(job=NewJob(id=id)) for id in "abcd"])
    taken = [await task for task in taking]
    return sorted(id for one in taken for id in one.get("r", ())) == list("abcd")


async def takes_up_to_limit(storage: ServingStorage, lease: str) -> bool:
    """Return whether claims with the limit 1 take one job each, without waiting, from two changed queues."""
    for queue in QUEUES[:2]:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=f"last of {queue}"))])
    taken = [await take(storage, lease, f"limit-{number}") for number in range(2)]
    return sorted(id for one in taken for ids in one.values() for id in ids) == ["last of q", "last of r"]


async def take(storage: ServingStorage, lease: str, name: str, limit: int = 1) -> dict[str, list[str]]:
    """Make blocking claims until one takes jobs, and return their ids by queue. A few may end early."""
    for number in range(1 + MOST_WAKE_UPS):
        if jobs := jobs_of(await start_claim(storage, lease, f"{name}-{number}", limit)):
            return jobs
    return {}


async def claim_any(
    storage: ServingStorage, lease: str, claim_id: str, limit: int
) -> Mapping[str, ClaimResult]:
    return await storage.claim_blocking_any(QUEUES, lease, limit, claim_id=claim_id, timeout=BLOCKING_SECONDS)


def start_claim(
    storage: ServingStorage, lease: str, claim_id: str, limit: int = 1
) -> asyncio.Task[Mapping[str, ClaimResult]]:
    return asyncio.create_task(claim_any(storage, lease, claim_id, limit))


def ids_of(claim: ClaimResult) -> list[str]:
    return [job.id for job in claim.jobs]


def jobs_of(claims: Mapping[str, ClaimResult]) -> dict[str, list[str]]:
    """Return the ids that were claimed, by queue. Queues without jobs are left out."""
    return {queue: ids_of(claim) for queue, claim in claims.items() if claim.jobs}


def ends_of(claim: ClaimResult) -> list[Settlement]:
    """Return the settlements that complete the claimed jobs."""
    return [
        Settlement(id=job.id, fence=job.run.fence, action=Complete())
        for job in claim.jobs
        if job.run is not None
    ]


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
    "fair": takes_turns,
    "output": keeps_output,
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
