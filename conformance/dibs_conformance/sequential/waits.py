"""Test that each change that the contract names ends a wait, for the same and other clients.

All waits of a round run at once, each on its own queue. A wake-up may be lost, and a busy machine may delay
one, so only a change that ends no wait promptly in ATTEMPTS rounds is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final

from attrs import define, field

from dibs.model.requests import SettingsPatch
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage, Watch
from dibs_conformance.concurrent.process_clients import Child
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.sequential.wait_cases import CASES as GENERAL_CASES
from dibs_conformance.sequential.wait_cases import LIMIT_CASES, SOON, WaitCase
from dibs_conformance.target import Locations, OpenStorage

#: A wait that returns within this many seconds after its change was woken by the change. A poll is slower.
PROMPT_SECONDS: Final = 0.5
ATTEMPTS: Final = 5
#: Seconds from the begin of the waits to the first change. A wait that begins later compares its token.
BEFORE_CHANGES: Final = 0.1
#: Seconds after which a wait ends without a change.
TIMEOUT: Final = 60.0
#: All cases. Those in LIMIT_CASES need the capability `limits`.
CASES: Final = (*GENERAL_CASES, *LIMIT_CASES)
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
        tried = CASES if waiting.capabilities.limits else GENERAL_CASES
        without_change, with_change = (
            [n for n in some if n < len(tried)] for some in (WITHOUT_CHANGE, WITH_CHANGE)
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
    found = await asyncio.gather(*(count_wake_ups(storage, watch) for watch in watches))
    return len(watches), [
        f"a wait for {watch} was woken {woken} times in {IDLE_SECONDS} s, and nothing had changed"
        for watch, woken in zip(watches, found, strict=True)
        if woken > MOST_IDLE_WAKE_UPS
    ]


async def count_wake_ups(storage: Storage, watch: Watch) -> int:
    """Return how often waits on one idle queue return early, until the time is over or the limit exceeded."""
    queue, woken = f"idle-{watch}", 0
    since = (await begin_wait(storage, watch, queue)).since
    ends = time.monotonic() + IDLE_SECONDS
    while woken <= MOST_IDLE_WAKE_UPS and (left := ends - time.monotonic()) > 0:
        found = await storage.wait([queue], for_=watch, ids=ids_for(watch), since=since, timeout=left)
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
