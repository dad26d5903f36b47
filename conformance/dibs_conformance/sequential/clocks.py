"""Tests of the time of a storage: it goes on, and never steps back.

The kit cannot move the clock of a machine or of a server. It shifts the clock of this process, as Python code
sees it, or opens a location with a manual clock that is ahead, and then with the system's clock. A storage
must get its time from one clock (contract 1, Time). If that is the clock of a server, the clock of a client
has no influence. If it is the clock of the machine, the shift is a step of that clock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, Self
from unittest.mock import patch

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, SettingsPatch
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.bad_calls import verbs
from dibs_conformance.target import Locations

_time, _time_ns, _datetime = time.time, time.time_ns, dt.datetime


@contextmanager
def shifted_clock(shift: int) -> Iterator[None]:
    """Shift `time.time`, `time.time_ns` and `datetime.now` by `shift` ms, in all loaded modules."""
    replaced = shifted_functions(shift)
    with ExitStack() as stack:
        for module in [*sys.modules.values()]:
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                other = replaced.get(id(value))
                if other is not None and module is not sys.modules[__name__]:
                    stack.enter_context(patch.object(module, name, other))
        yield


def shifted_functions(shift: int) -> dict[int, Any]:
    """Return the shifted functions and class, by the `id` of the originals."""

    class ShiftedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return super().now(tz) + dt.timedelta(milliseconds=shift)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(dt.UTC).replace(tzinfo=None)

    shifted_time: Callable[[], float] = lambda: _time() + shift / 1000  # noqa: E731 - it has no other name
    shifted_time_ns: Callable[[], int] = lambda: _time_ns() + shift * 1_000_000  # noqa: E731
    return {id(_time): shifted_time, id(_time_ns): shifted_time_ns, id(_datetime): ShiftedDatetime}


#: The ms by which the clock of a client is shifted, far more than any step of a real clock during a test.
SHIFT: Final = 3_600_000


#: The name, the section and the sentence of the law.
STEPS_LAW: Final = (
    "time goes on and never steps back",
    "1, Time",
    "The time of a storage follows one clock and never steps back, on any handle; a client cannot set it.",
)
#: Steps of the clock of this process, in ms from its right time.
SHIFTS: Final = (0, 0, SHIFT, 0, -500, -SHIFT, 0)
#: Seconds between two readings of the time, and the longest wait until the time has gone on.
PAUSE, PATIENCE = 0.03, 5.0
#: The ms by which the time may go on faster or slower than the kit's clock.
SLACK: Final = 1_000


async def check_clock_steps(locations: Locations, *, handles: int) -> tuple[int, list[str]]:
    """Return the number of checks and a description of each wrong result."""
    location = locations.new()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(locations.open(location, "system")) for _ in range(handles)]
        wrong = await find_accepted_times(opened[0])
        wrong += await find_stopped_clock(opened[0])
        wrong += await find_steps_back(opened)
    return 3, wrong


async def read_time(storage: Storage) -> int:
    """Return the storage's now. The call writes, so the storage must remember this time."""
    return (await storage.grant(["q"], 60_000, "kit")).now


async def find_stopped_clock(storage: Storage) -> list[str]:
    """Wait until the time has gone on. It must not go on much faster than the kit's clock."""
    first, began = await read_time(storage), time.monotonic()
    latest = first
    while latest == first and time.monotonic() < began + PATIENCE:
        await asyncio.sleep(PAUSE)
        latest = await read_time(storage)
    passed = int((time.monotonic() - began) * 1000)
    if latest == first:
        return [f"the time stood still for {PATIENCE:.0f} s"]
    if latest - first > passed + SLACK:
        return [f"{latest - first} ms passed in the storage while {passed} ms really passed"]
    return []


async def find_steps_back(handles: list[Storage]) -> list[str]:
    highest = 0
    for shift in SHIFTS:
        for number, storage in enumerate(handles, start=1):
            with shifted_clock(shift):
                now = await read_time(storage)
            if now < highest:
                back = f"from {highest} to {now}, on handle {number}"
                return [f"the time stepped back {back}, with the clock of the client {shift} ms off"]
            highest = now
    return []


async def find_accepted_times(storage: Storage) -> list[str]:
    """Pass `now` to every verb that takes it. With the system's clock, each must refuse it."""
    wrong = []
    for verb, arguments in calls_with_now():
        try:
            await getattr(storage, verb)(**arguments)
        except Refused:
            continue
        except Exception as error:  # noqa: BLE001 - any other exception is the finding
            wrong.append(f"{verb} with `now` and the system's clock: {type(error).__name__}")
        else:
            wrong.append(f"{verb} accepted `now` with the system's clock; expected Refused")
    return wrong


#: Valid arguments of all verbs, by name.
VALID: Final[dict[str, Any]] = {
    "queue": "q", "queues": ["q"], "id": "a", "ids": ["a"], "lease": "0" * 32, "fence": 1, "revision": 1,
    "limit": 1, "ttl": 1000, "holder": "kit", "progress": b"1", "state": "waiting", "end": Complete(),
    "requests": [EnqueueRequest(job=NewJob(id="a"))], "settlements": [], "records": [],
    "patch": JobPatch(priority=1), "now": 1_767_225_600_000,
}  # fmt: skip


def calls_with_now() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each verb that takes `now`, and valid arguments. A report needs progress or a memo."""
    for verb, function in verbs(Capabilities()):
        taken = inspect.signature(function).parameters
        given = [name for name, one in taken.items() if one.default is one.empty and name != "self"]
        given += [name for name in ("progress", "now") if name in taken]
        valid = VALID | ({"patch": SettingsPatch(paused=False)} if verb == "configure" else {})
        if "now" in taken:
            yield verb, {name: valid[name] for name in given}


#: The name, the section and the sentence of the law.
JUMP_LAW: Final = (
    "time goes on after a clock was ahead",
    "1, Time",
    "If the clock is set back, time goes on from the highest time that was seen.",
)
#: The number of ms by which the clock was ahead.
AHEAD: Final = 3_600_000
#: Time to live in ms of the lease that the test watches. It expires unless the time stands still.
TTL: Final = 50
#: Seconds after which an unexpired lease of TTL ms means that time stands still.
JUMP_PATIENCE: Final = 10.0


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
            return 1, [f"after a step at {highest}, a lease of {TTL} ms was alive for {JUMP_PATIENCE:.0f} s"]
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

    The time is None if the lease is alive after JUMP_PATIENCE seconds.
    """
    taken: list[str] = []
    deadline = time.monotonic() + JUMP_PATIENCE
    while time.monotonic() < deadline:
        claimed = await storage.claim("q", lease, 1)
        if claimed.lost:
            return taken, claimed.now
        taken += [job.id for job in claimed.jobs]
        await asyncio.sleep(TTL / 1000)
    return taken, None
