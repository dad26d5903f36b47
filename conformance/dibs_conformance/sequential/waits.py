"""Tests of waits: each change that the contract names ends a wait, and nothing else does.

Each case prepares its own queue. A client then waits, and the same or another client makes the change. All
waits of a round run at once. A wake-up may be lost, and a busy machine may delay one, so only a change that
ends no wait promptly in ATTEMPTS rounds is missing. A storage may also end a wait by a rare wrong hint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final

from attrs import define, field, frozen

from dibs.model.requests import SettingsPatch
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage, Watch
from dibs_conformance.concurrent.process_clients import Child
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.target import Locations, OpenStorage

#: The delay of a job that falls due during a wait, in ms.
SOON: Final = 300
#: The ms after which an expiring lease ends, once it is renewed.
SHORT: Final = 1


@frozen
class WaitCase:
    """A change that ends a wait: its name, what is waited for, the preparation and the change."""

    name: str
    watch: Watch
    preparation: str
    #: Without steps, the wait ends by itself.
    change: str
    #: False for a wait for progress that names no id: it waits for any id of the queue.
    names_id: bool = True

    @property
    def ids(self) -> list[str]:
        return ["a"] if self.watch in ("ids", "progress") and self.names_id else []

    async def prepare(self, storage: Storage, calls: HistoryCalls) -> None:
        """Make the calls of the preparation. A lease that is granted for 200 ms has expired afterwards."""
        await play_steps(storage, calls, self.preparation)
        while "grant 200" in self.preparation:
            if not (await storage.renew([calls.queue], calls.lease, SHORT))[calls.queue].alive:
                return


CLAIM = "enqueue a; grant 60000; claim 1"
EXPIRED = "enqueue a; grant 200; claim 1"
BLOCKED, HANDED_OFF = f"{CLAIM}; enqueue a", f"{CLAIM}; hand_off a"
WAKE = "on_conflict=create:no+run_at:wake"
AT_LIMIT = f"set max_active=1; {CLAIM}; enqueue b"
LOGGED = "set log_level=all"
GENERAL_CASES: Final = (
    WaitCase("enqueue", "work", "", "enqueue a"),
    WaitCase("retry", "work", CLAIM, "retry a"),
    WaitCase("release", "work", CLAIM, "release a"),
    WaitCase("a release that parks no job", "work", BLOCKED, "release a delay=60000 parked=yes"),
    WaitCase("a wake", "work", f"{CLAIM}; release a delay=60000 parked=yes", f"enqueue a {WAKE}"),
    WaitCase("reap", "work", EXPIRED, "reap 1"),
    WaitCase("drop", "work", CLAIM, "drop 1"),
    WaitCase("resume", "work", "set paused=yes; enqueue a", "set paused=no"),
    WaitCase("configure max_active", "work", AT_LIMIT, "set max_active=2"),
    WaitCase("the end of a run at max_active", "work", AT_LIMIT, "complete a"),
    WaitCase("hand-off of a run at max_active", "work", AT_LIMIT, "hand_off a"),
    WaitCase("the end of a run with a successor", "work", BLOCKED, "complete a"),
    WaitCase("retry_failed", "work", f"{CLAIM}; fail a", "retry_failed a"),
    WaitCase("amend run_at", "work", "enqueue a@60000", "amend a delay=0"),
    WaitCase("a due time", "work", f"enqueue a@{SOON}", ""),
    WaitCase("enqueue", "events", LOGGED, "enqueue a"),
    WaitCase("complete", "events", CLAIM, "complete a"),
    WaitCase("retry", "events", CLAIM, "retry a"),
    WaitCase("release", "events", CLAIM, "release a"),
    WaitCase("reap", "events", EXPIRED, "reap 1"),
    WaitCase("drop", "events", CLAIM, "drop 1"),
    WaitCase("cancel", "events", "enqueue a", "cancel a"),
    WaitCase("pause", "events", LOGGED, "set paused=yes"),
    WaitCase("amend", "events", f"{LOGGED}; {CLAIM}", "amend a attributes=b:1"),
    WaitCase("complete", "ids", CLAIM, "complete a"),
    WaitCase("fail", "ids", CLAIM, "fail a"),
    WaitCase("end as cancelled", "ids", CLAIM, "cancelled a"),
    WaitCase("cancel of a waiting job", "ids", "enqueue a", "cancel a"),
    WaitCase("cancel of a successor", "ids", BLOCKED, "cancel a"),
    WaitCase("cancel of a handed-off run", "ids", HANDED_OFF, "cancel a running=yes"),
    WaitCase("supersede of a handed-off run", "ids", HANDED_OFF, "enqueue a on_conflict=supersede:yes"),
    WaitCase("finish", "ids", HANDED_OFF, "finish complete a"),
    WaitCase("drop after a requested cancellation", "ids", f"{CLAIM}; cancel a running=yes", "drop 1"),
    WaitCase("report", "progress", CLAIM, "report a 0.5"),
    WaitCase("report of any id", "progress", CLAIM, "report a 0.5", names_id=False),
    WaitCase("report after another", "progress", f"{CLAIM}; report a 0.5", "report a 0.5"),
    WaitCase("report by a handed-off run", "progress", HANDED_OFF, "report a 0.5"),
    WaitCase("the end of a run", "progress", CLAIM, "complete a"),
    WaitCase("cancel of a waiting job", "progress", "enqueue a", "cancel a"),
)
START_ONE = "enqueue a:k b:k; grant 60000; claim"
FULL = f"set per_key=1; {START_ONE}"
LIMIT_CASES: Final = (
    WaitCase("the end of a run of a full key", "work", FULL, "complete a"),
    WaitCase("the failure of a run of a full key", "work", FULL, "fail a"),
    WaitCase("the end of a cancelled run of a full key", "work", FULL, "cancelled a"),
    WaitCase("hand-off of a run of a full key", "work", FULL, "hand_off a"),
    WaitCase("a later retry of a run of a full key", "work", FULL, "retry a delay=60000"),
    WaitCase("a later release of a run of a full key", "work", FULL, "release a delay=60000"),
    WaitCase("reap of a run of a full key", "work", FULL.replace("60000", "200"), "reap 1"),
    WaitCase("drop of a run of a full key", "work", FULL, "drop 1"),
    WaitCase("forget of a run of a full key", "work", FULL, "forget a"),
    WaitCase(
        "the end of a run before a scheduled job", "work", FULL.replace("b:k", "b:k@60000"), "complete a"
    ),
    WaitCase("an update with another key", "work", FULL, "enqueue b:m"),
    WaitCase("a higher per_key", "work", FULL, "set per_key=2"),
    WaitCase("the end of per_key", "work", FULL, "set per_key=none"),
    WaitCase("a change of rate", "work", f"set rate=1/60000; {START_ONE}", "set rate=2/60000"),
    WaitCase("the end of rate", "work", f"set rate=1/60000; {START_ONE}", "set rate=none"),
    WaitCase("the end of key_rate", "work", f"set key_rate=1/60000; {START_ONE}", "set key_rate=none"),
    WaitCase("a low cost under rate", "work", f"set rate=1/60000; {START_ONE}", "complete a cost=0"),
    WaitCase("a low cost under key_rate", "work", f"set key_rate=1/60000; {START_ONE}", "complete a cost=0"),
    WaitCase("an earlier start", "work", f"set rate=1/60000; {START_ONE}", "complete a cost=500"),
    WaitCase("a start that the rate allows", "work", f"set rate=1/{SOON}; {START_ONE}", ""),
    WaitCase("a start that the key_rate allows", "work", f"set key_rate=1/{SOON}; {START_ONE}", ""),
)
TURN_CASES: Final = (
    WaitCase("a resumed key", "work", f"set shares=k:0; {START_ONE}", "set shares=k:1"),
    WaitCase("a share that is removed", "work", f"set fair=yes shares=k:0; {START_ONE}", "set shares=k:none"),
)
OUTPUT_CASES: Final = (
    WaitCase("report of output", "progress", CLAIM, "report a output=x"),
    WaitCase(
        "report of output after another", "progress", f"{CLAIM}; report a output=x", "report a output=x"
    ),
    WaitCase("report of output of any id", "progress", CLAIM, "report a output=x", names_id=False),
)


#: A wait that returns within this many seconds after its change was woken by the change. A poll is slower.
PROMPT_SECONDS: Final = 0.5
ATTEMPTS: Final = 5
#: Seconds from the begin of the waits to the first change. A wait that begins later compares its token.
BEFORE_CHANGES: Final = 0.1
#: Seconds after which a wait ends without a change.
TIMEOUT: Final = 60.0
#: The cases that need a capability, by its name.
CASES_OF: Final = {"limits": LIMIT_CASES, "fair": TURN_CASES, "output": OUTPUT_CASES}
CASES: Final = (*GENERAL_CASES, *(case for cases in CASES_OF.values() for case in cases))
#: The numbers of the cases whose wait ends by itself, and of the others. A storage may wake all its waits
#: after each change, so the former have rounds without a change.
WITHOUT_CHANGE: Final = tuple(number for number, case in enumerate(CASES) if not case.change)
WITH_CHANGE: Final = tuple(number for number, case in enumerate(CASES) if case.change)
#: Seconds for which idle queues are watched, and the most wake-ups that each wait may have meanwhile.
IDLE_SECONDS: Final = 0.5
MOST_IDLE_WAKE_UPS: Final = 5

#: Makes the changes of some cases. It returns when they are made.
MakeChanges = Callable[[Sequence[tuple[int, HistoryCalls]]], Awaitable[Any]]


async def missing_wake_ups(locations: Locations, *, shared: bool) -> list[str]:
    """Return a text for each change that ended no wait: its name, and the client that made it."""
    location = locations.new()
    async with locations.open(location, "system") as waiting, locations.open(location, "system") as other:
        clients: dict[str, MakeChanges] = {"the same client": changes_through(waiting)}
        claims = waiting.capabilities
        spared = {case for name, some in CASES_OF.items() if not getattr(claims, name) for case in some}
        without_change, with_change = (
            [n for n in some if CASES[n] not in spared] for some in (WITHOUT_CHANGE, WITH_CHANGE)
        )
        missing = await missing_by(waiting, clients, without_change)
        if await sees_changes(waiting, other):
            clients["another client"] = changes_through(other)
        missing += await missing_by(waiting, clients, with_change)
        if not shared:
            return missing
        async with changes_in_process(locations.target, location) as make_changes:
            return missing + await missing_by(waiting, {"another process": make_changes}, with_change)


async def missing_by(waiting: Storage, clients: dict[str, MakeChanges], numbers: Sequence[int]) -> list[str]:
    """Return a text for each of the numbered cases whose change ended no wait."""
    missing = []
    for client, make_changes in clients.items():
        cases = await WaitRounds(waiting, make_changes, client).missing_cases(numbers)
        missing += [f"a wait for {case.watch} after {case.name} by {client}" for case in cases]
    return missing


async def sees_changes(storage: Storage, other: Storage) -> bool:
    """Return whether two openings of a location share their jobs. A storage in memory need not share them."""
    await other.configure("shared", SettingsPatch(max_active=7))
    return any(info.settings.max_active == 7 for info in await storage.queues())


def changes_through(storage: Storage) -> MakeChanges:
    return lambda prepared: make_all_changes(storage, prepared)


async def make_all_changes(storage: Storage, prepared: Sequence[tuple[int, HistoryCalls]]) -> None:
    await asyncio.gather(*(play_steps(storage, state, CASES[number].change) for number, state in prepared))


@define
class WaitRounds:
    """The rounds of all cases for one client that makes the changes."""

    waiting: Storage
    make_changes: MakeChanges
    client: str
    _rounds: count[int] = field(factory=count, init=False)

    async def missing_cases(self, numbers: Sequence[int]) -> list[WaitCase]:
        """Return those of the numbered cases whose wait was not woken promptly in any round."""
        left = list(numbers)
        for _ in range(ATTEMPTS):
            if left:
                left = await self._run_round(left)
        return [CASES[number] for number in left]

    async def _run_round(self, numbers: Sequence[int]) -> list[int]:
        """Wait for all cases at once, and return those that were not woken.

        After the changes, wait again with the old tokens: each of these waits must return at once.
        """
        turn = next(self._rounds)
        states = [HistoryCalls(f"{self.client} {turn} {number}".replace(" ", "-")) for number in numbers]
        await asyncio.gather(*map(self._prepare, numbers, states))
        begun = await asyncio.gather(*map(self._read_token, numbers, states))
        waits = [
            asyncio.create_task(self._wait(number, state, token.since))
            for number, state, token in zip(numbers, states, begun, strict=True)
        ]
        try:
            await asyncio.sleep(BEFORE_CHANGES)
            await self.make_changes(list(zip(numbers, states, strict=True)))
            await asyncio.wait(waits, timeout=max(PROMPT_SECONDS, 2 * SOON / 1000))
            # Taken before the next waits begin: a storage that reads its changes then also wakes these waits.
            woken = [was_woken(wait) for wait in waits]
            late = await asyncio.gather(
                *(
                    self._wait(number, state, token.since, PROMPT_SECONDS)
                    for number, state, token in zip(numbers, states, begun, strict=True)
                )
            )
            return [
                number
                for number, first, again in zip(numbers, woken, late, strict=True)
                if not (first and again.woken)
            ]
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _prepare(self, number: int, state: HistoryCalls) -> None:
        await CASES[number].prepare(self.waiting, state)

    async def _read_token(self, number: int, state: HistoryCalls) -> WaitResult:
        case = CASES[number]
        return await self.waiting.wait([state.queue], for_=case.watch, ids=case.ids, timeout=0)

    async def _wait(
        self, number: int, state: HistoryCalls, since: Any, timeout: float = TIMEOUT
    ) -> WaitResult:
        case = CASES[number]
        return await self.waiting.wait(
            [state.queue], for_=case.watch, ids=case.ids, since=since, timeout=timeout
        )


def was_woken(wait: asyncio.Task[WaitResult]) -> bool:
    """Return whether a wait was woken. A wait that failed raises its error."""
    return wait.done() and wait.result().woken


async def begin_wait(storage: Storage, watch: Watch, queue: str) -> WaitResult:
    """Return the tokens of the current state, from a wait that ends at once."""
    return await storage.wait([queue], for_=watch, ids=ids_for(watch), timeout=0)


def ids_for(watch: Watch) -> list[str]:
    return ["a"] if watch in ("ids", "progress") else []


# -- idle waits --------------------------------------------------------------------------------------


async def check_idle_waits(storage: Storage) -> tuple[int, list[str]]:
    """Wait on queues where nothing happens. Return the number of waits, and a text for each busy one."""
    watches: tuple[Watch, ...] = ("work", "events", "ids", "progress")
    begun = [await begin_wait(storage, watch, f"idle-{watch}") for watch in watches]
    found = await asyncio.gather(
        *(count_wake_ups(storage, *one) for one in zip(watches, (wait.since for wait in begun), strict=True))
    )
    return len(watches), [
        f"a wait for {watch} was woken {woken} times in {IDLE_SECONDS} s, and nothing had changed"
        for watch, woken in zip(watches, found, strict=True)
        if woken > MOST_IDLE_WAKE_UPS
    ]


async def check_waits_under_limits(storage: Storage) -> tuple[int, list[str]]:
    """Wait in queues whose jobs cannot start soon: their key is full or paused, or a rate holds them."""
    paused = ("shares=k:0",) if storage.capabilities.fair else ()
    limits = ("per_key=1", "rate=1/3600000", "key_rate=1/3600000", *paused)
    tokens = []
    for limit in limits:
        calls = HistoryCalls(f"idle-{limit.partition('=')[0]}")
        await play_steps(storage, calls, f"set {limit}; enqueue a:k b:k c:k; grant", now=NOW)
        tokens.append({calls.queue: (await storage.claim(calls.queue, calls.lease, 10, now=NOW)).token})
    found = await asyncio.gather(*(count_wake_ups(storage, "work", since) for since in tokens))
    return len(limits), [
        f"a wait under {limit} was woken {woken} times in {IDLE_SECONDS} s, and no job could start"
        for limit, woken in zip(limits, found, strict=True)
        if woken > MOST_IDLE_WAKE_UPS
    ]


async def count_wake_ups(storage: Storage, watch: Watch, since: Mapping[str, str]) -> int:
    """Return how often waits on one idle queue return early, until the time is over or the limit exceeded."""
    woken, ends = 0, time.monotonic() + IDLE_SECONDS
    while woken <= MOST_IDLE_WAKE_UPS and (left := ends - time.monotonic()) > 0:
        found = await storage.wait([*since], for_=watch, ids=ids_for(watch), since=dict(since), timeout=left)
        since = found.since
        woken += time.monotonic() < ends
    return woken


# -- another process ---------------------------------------------------------------------------------


@asynccontextmanager
async def changes_in_process(target: str | OpenStorage, location: str) -> AsyncIterator[MakeChanges]:
    """Yield a function that makes changes in a process of its own, which ends with the context."""
    with Child(run_changes, target, location) as child:

        async def make_changes(prepared: Sequence[tuple[int, HistoryCalls]]) -> None:
            child.pipe.send(prepared)
            await asyncio.to_thread(child.receive, "the changes of another process", TIMEOUT)

        await make_changes([])
        yield make_changes


def run_changes(target: str | OpenStorage, location: str, requests: Connection) -> None:
    """Make the changes that arrive, until the other end closes. Answer each with True."""
    asyncio.run(_run_changes(target, location, requests))


async def _run_changes(target: str | OpenStorage, location: str, requests: Connection) -> None:
    async with Locations(target).open(location, "system") as storage:
        while True:
            try:
                prepared = await asyncio.to_thread(requests.recv)
            except EOFError:
                return
            await make_all_changes(storage, prepared)
            requests.send(True)  # noqa: FBT003 - a message


NOW: Final = 1_767_225_600_000
#: Seconds for which a wait is watched after the report.
PATIENCE: Final = 0.3
#: Seconds from the begin of the waits to the reports. A wait that begins later compares its token.
BEFORE_REPORTS: Final = 0.05
#: Ms after which the first lease of a queue expires.
EXPIRY: Final = 10
#: Waits that no report may end: the name of the report, the watch and the ids of the wait, and the report.
IDLE: Final[tuple[tuple[str, Watch, Sequence[str], str], ...]] = (
    ("a report with progress", "ids", ["a"], "report a 0.5"),
    ("a report with progress", "events", [], "report a 0.5"),
    ("a report with progress", "work", [], "report a 0.5"),
    ("a report of another id", "progress", ["b"], "report a 0.5"),
    ("a report of a late holder", "progress", ["a"], "report late 0.5"),
    ("a report of a memo alone", "progress", ["a"], "report a memo=m"),
)


async def check_progress_waits(storage: Storage) -> tuple[int, list[str]]:
    """Report while clients wait. Return the number of waits, and a text for each wrong one."""
    left = list(range(len(IDLE)))
    now = NOW
    for attempt in range(ATTEMPTS):
        prepared = []
        for number in left:
            now += EXPIRY
            prepared.append(await claim_twice(storage, f"progress-{number}-{attempt}", now))
        now += EXPIRY
        waits = (
            wait_for_report(storage, calls, now, *IDLE[number][1:])
            for number, calls in zip(left, prepared, strict=True)
        )
        found = await asyncio.gather(*waits)
        left = [number for number, one in zip(left, found, strict=True) if one.woken]
    wrong = [f"{IDLE[number][0]} ended a wait for {IDLE[number][1]}" for number in left]
    return len(IDLE) + 1, wrong + await find_wrong_names(storage, now + EXPIRY)


async def wait_for_report(
    storage: Storage, calls: HistoryCalls, now: int, watch: Watch, ids: Sequence[str], report: str
) -> WaitResult:
    begun = await storage.wait([calls.queue], for_=watch, ids=ids, timeout=0)
    waiting = asyncio.create_task(
        storage.wait([calls.queue], for_=watch, ids=ids, since=begun.since, timeout=PATIENCE)
    )
    await asyncio.sleep(BEFORE_REPORTS)
    await play_steps(storage, calls, report, now=now)
    return await waiting


async def find_wrong_names(storage: Storage, now: int) -> list[str]:
    """Wait for progress of two ids, and report on one. If the wake-up names ids, it names that one."""
    calls = await claim_twice(storage, "progress-names", now)
    found = await wait_for_report(storage, calls, now + EXPIRY, "progress", ["a", "b"], "report a 0.5")
    if not found.woken or found.reported in (None, frozenset({"a"})):
        return []
    return [f"a wake-up after a report of a names {sorted(found.reported or ())}"]


async def claim_twice(storage: Storage, queue: str, now: int) -> HistoryCalls:
    """Enqueue job `a`, and claim it twice: the run of the first lease, `late`, is reaped."""
    calls = HistoryCalls(queue)
    await play_steps(storage, calls, f"enqueue a; grant {EXPIRY}; late = claim", now=now)
    await play_steps(storage, calls, "reap 1; grant 60000; claim", now=now + EXPIRY)
    return calls
