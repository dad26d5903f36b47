"""The long part of level L2: clients make hundreds of random calls, and the history checker checks them.

Clients are processes if the storage claims `shared`, else tasks of one event loop. Afterwards a worker drains
the queues, and every id is read. The calls are actions of the verbs (verbs/actions.py), without forget,
retry_failed and follow-ups: the rules of the checker allow for anything that these may have done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, count, islice
from multiprocessing.connection import Connection
from random import Random
from typing import Final

from msgspec import structs

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, SettingsPatch, Settlement
from dibs.model.results import State
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.client import run_program
from dibs_conformance.concurrent.process_clients import Child
from dibs_conformance.history.check import CheckResult, check
from dibs_conformance.history.recorder import Recorder
from dibs_conformance.history.rules import HistoryRule, queues
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.values import merge_findings
from dibs_conformance.steps import RecordedStep
from dibs_conformance.target import LevelPlan, Locations, OpenStorage
from dibs_conformance.verbs.actions import GRANTS, ClientAction, ClientState, Program
from dibs_conformance.verbs.enqueue import CONFLICT_OPTIONS, JOB_DATA
from dibs_conformance.verbs.events import read_events
from dibs_conformance.verbs.settle import SETTLE_ACTIONS

#: Few ids, so that clients meet. Other ids are used by one client only.
SHARED_IDS: Final = ("a", "b", "c")
#: After this number of calls a client uses the next id that all clients use at about the same time. So an
#: import meets an enqueue.
CALLS_PER_MET_ID: Final = 5
#: Relative frequency of each operation.
WEIGHTS: Final[Mapping[str, int]] = {
    "enqueue": 12,
    "claim": 10,
    "settle": 14,
    "settle_and_claim": 4,
    "claim_blocking": 2,
    "reap": 4,
    "report": 5,
    "renew": 2,
    "grant": 3,
    "drop": 2,
    "cancel": 2,
    "get": 2,
    "import_": 4,
    "prune": 2,
    "configure": 5,
    "events": 4,
    "list": 1,
    "export": 1,
    "split": 1,
    "counts": 1,
}
#: The patches of verbs.configure: most of them allow claims again. No patch trims the log.
PATCHES: Final = (
    *(
        "pause",
        *("resume",) * 4,
        "one active",
        *("some active",) * 3,
        *("any active",) * 3,
        *("short outcomes",) * 2,
    ),
    *("long outcomes", "log age", "key age", "all events", *("fail handler",) * 2, "no fail handler"),
)
LIMIT_PATCHES: Final = ("one of a key", "some starts", "some starts of a key", *("no limits",) * 4)
LISTED_STATES: Final[tuple[State, ...]] = ("waiting", "active")
#: The limits of claims, and those of the operations that read pages.
LIMITS: Final = (1, 3, 10)
PAGES: Final = {"events": (100,), "list": (2, 100), "export": (2, 100), "split": (2, 100), "prune": (3, 1000)}


def random_calls(
    random: Random, client: str, claims: Capabilities, weights: Mapping[str, int] = WEIGHTS
) -> Iterator[ClientAction]:
    """Return calls without end. The first ones grant leases."""
    chosen = {name: one for name, one in weights.items() if name != "claim_blocking" or claims.blocking_claim}
    patches = (*PATCHES, *LIMIT_PATCHES) if claims.limits else PATCHES

    def draw(number: int) -> ClientAction:
        [operation] = random.choices([*chosen], [*chosen.values()])
        met = f"m{number // CALLS_PER_MET_ID}"
        ids = random.choices((*SHARED_IDS * 2, f"{client}-{number}", met), k=random.choice((1, 1, 3)))
        of_operation = {"get": SHARED_IDS, "import_": (met,), "claim_blocking": (f"{client}-{number}",)}
        return ClientAction(
            operation=operation,
            ids=of_operation.get(operation, tuple(ids)),
            nth_newest=random.choice((0, 0, 1, 2, 3, 5, 8, 13)),
            lease=random.choice((0, 1)) if operation == "grant" else random.choice((-1, -1, -2, -3)),
            settle_as=random.choice((*("complete",) * 6, *SETTLE_ACTIONS)),
            conflict=random.randrange(len(CONFLICT_OPTIONS)),
            data=random.randrange(len(JOB_DATA)),
            delay=random.choice((0, 0, 0, 5)),
            limit=random.choice(PAGES.get(operation, LIMITS)),
            flag=operation in ("enqueue", "cancel", "report") and random.random() < 0.5,
            configure_to=random.choice(patches),
            state=random.choice(LISTED_STATES),
            serial=random.randrange(1, 1000),
        )

    return chain((*GRANTS, GRANTS[0]), map(draw, count()))


QUEUE = "q"
FAILED = QUEUE + FAIL_SUFFIX
CLIENTS = 3
#: Calls per client in one run: enough that every rule applies.
CALLS = 200
#: Runs added after the budget is over, until every rule has applied.
EXTRA_RUNS = 5
#: Seconds between two polls of a drain, and until the drain gives up.
POLL_SECONDS, DRAIN_TIMEOUT = 0.05, 60.0
#: Seconds in which a client must finish its calls.
CLIENT_TIMEOUT = 300.0
#: This rule needs a resource outside the storage, which the kit does not have.
RULE_OUTSIDE = "R19"


def free_run(plan: LevelPlan) -> Findings:
    """Run random clients until the budget or the number of runs is used up and every rule has applied."""
    ends = time.monotonic() + plan.budget
    found = Findings()
    plan.sources.append(lambda: found)
    for number in range(10**6):
        is_over = time.monotonic() > ends if plan.examples is None else number >= plan.examples
        if number and is_over and (all_rules_met(found) or number > EXTRA_RUNS):
            break
        found = merge_findings(found, run_and_check(plan, plan.seed + number))
        plan.progress(found.histories)
        if found.failures:
            break
    return found


def all_rules_met(found: Findings) -> bool:
    return all(law.met for law in found.laws)


def run_and_check(plan: LevelPlan, seed: int) -> Findings:
    """Record and check one run. An exception of the storage becomes a failure."""
    try:
        found = findings_from(run_once(plan, seed))
    except Exception as error:  # noqa: BLE001 - any exception is a failure of the storage
        return Findings(histories=1, failures=(LawFailure(law=type(error).__name__, why=str(error)),))
    return found if plan.claims.limits else without_rules(found, queues.OF_LIMITS)


def without_rules(found: Findings, rules: Sequence[type[HistoryRule]]) -> Findings:
    """Return the findings without the laws of some rules."""
    left_out = {rule.name for rule in rules}
    return structs.replace(
        found, laws=tuple(law for law in found.laws if law.name.split()[0] not in left_out)
    )


def findings_from(checked: CheckResult) -> Findings:
    """Return the result as findings of a level, without the rule about outside resources."""
    laws = tuple(law for law in checked.laws if not law.name.startswith(RULE_OUTSIDE))
    return Findings(histories=1, events=checked.steps, laws=laws, failures=checked.failures)


def run_once(plan: LevelPlan, seed: int) -> CheckResult:
    """Record one run in a new location, drain it, read all ids, and check the recording."""
    location = plan.locations.new()
    steps: list[RecordedStep] = []
    if plan.claims.shared:
        steps += run_in_processes(plan.locations.target, location, seed)
        asyncio.run(drain_location(plan.locations, location, steps))
    else:
        asyncio.run(run_in_one_process(plan.locations, location, seed, steps))
    return check(steps)


def run_in_processes(target: str | OpenStorage, location: str, seed: int) -> Iterator[RecordedStep]:
    """Run each client in its own process, and yield the steps of all.

    All processes share the machine's monotonic clock, so their times are comparable.
    """
    names = [f"client-{n}" for n in range(CLIENTS)]
    with ExitStack() as stack:
        clients = [stack.enter_context(Child(record_client, target, location, name, seed)) for name in names]
        for name, client in zip(names, clients, strict=True):
            yield from client.receive(name, CLIENT_TIMEOUT)


class ClientFailed(Exception):
    """A call of a client was not answered."""


def record_client(target: str | OpenStorage, location: str, name: str, seed: int, pipe: Connection) -> None:
    """Make the calls of a client in a process of its own, and send its steps."""
    pipe.send(asyncio.run(run_client(Locations(target), location, name, Random(f"{seed}-{name}"))))


async def run_client(locations: Locations, location: str, name: str, random: Random) -> list[RecordedStep]:
    steps: list[RecordedStep] = []
    async with locations.open(location, "system") as storage:
        await make_calls(Recorder(steps.append).wrap(storage, name), name, random, ClientState())
    return steps


async def make_calls(storage: Storage, name: str, random: Random, state: ClientState) -> None:
    """Make the random calls of a client, and drop all leases.

    Clients with the same state use the runs and leases of each other.
    """
    for action in islice(random_calls(random, name, storage.capabilities), CALLS):
        program = Program((action,), QUEUE, state, now=0)
        [call] = await run_program(storage, name, program, time.monotonic)
        if call.completion != "answered":
            raise ClientFailed(f"{call.operation} was {call.completion}: {call.answer}")
        # A storage that never awaits would not let other clients run.
        await asyncio.sleep(0)
    for lease in state.leases:
        await storage.drop([QUEUE], lease, 1000)


async def run_in_one_process(
    locations: Locations, location: str, seed: int, steps: list[RecordedStep]
) -> None:
    recorder = Recorder(steps.append)
    async with locations.open(location, "system") as storage:
        state = ClientState()
        names = [f"client-{n}" for n in range(CLIENTS)]
        randoms = [Random(f"{seed}-{name}") for name in names]
        await asyncio.gather(
            *(
                make_calls(recorder.wrap(storage, name), name, random, state)
                for name, random in zip(names, randoms, strict=True)
            )
        )
        await drain_and_read(storage, recorder, steps)


async def drain_location(locations: Locations, location: str, steps: list[RecordedStep]) -> None:
    async with locations.open(location, "system") as storage:
        await drain_and_read(storage, Recorder(steps.append), steps)


async def drain_and_read(storage: Storage, recorder: Recorder, steps: list[RecordedStep]) -> None:
    """Drain the queues, and read all ids, the counts and the log."""
    worker = recorder.wrap(storage, "drain")
    await worker.configure(QUEUE, SettingsPatch(paused=False, max_active=None))
    await drain(worker)
    now = recorder.clock()
    recorder.mark(RecordedStep(op="drained", began=now, ended=now, status="drained"))
    for queue in (QUEUE, FAILED):
        ids = sorted(ids_in(steps, queue))
        for start in range(0, len(ids), 1000):
            await worker.get(queue, ids[start : start + 1000])
    await worker.counts([QUEUE, FAILED])
    await read_events(worker, QUEUE, limit=1000)


async def drain(storage: Storage) -> bool:
    """Work until the queues are empty. Return False if jobs remain after `DRAIN_TIMEOUT` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_TIMEOUT
    lease = (await storage.grant([QUEUE, FAILED], 600_000, "drain")).lease
    if storage.capabilities.limits:
        await storage.configure(QUEUE, SettingsPatch(per_key=None, rate=None, key_rate=None))
    while loop.time() < deadline:
        for queue in (QUEUE, FAILED):
            await storage.reap(queue, 100)
            await complete_due(storage, queue, lease)
        await finish_handed_off(storage)
        counts = await storage.counts([QUEUE, FAILED])
        if not any(count.waiting or count.active or count.blocked for count in counts.values()):
            return True
        await storage.wait([QUEUE, FAILED], timeout=POLL_SECONDS)
    return False


async def complete_due(storage: Storage, queue: str, lease: str) -> None:
    """Claim and complete the due jobs."""
    jobs = (await storage.claim(queue, lease, 1000)).jobs
    done = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
    await storage.settle(queue, done)


async def finish_handed_off(storage: Storage) -> None:
    for id, slot in (await storage.list(QUEUE, "handed_off", limit=1000)).items:
        if slot.current is not None:
            await storage.finish(QUEUE, id, Complete(), slot.current.revision)


def ids_in(steps: Iterable[RecordedStep], queue: str) -> set[str]:
    return {step.id for step in steps if step.queue == queue and step.id}
