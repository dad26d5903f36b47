"""Test of the system clock: the time of a storage goes on and never steps back, if a client's clock does.

The calls alternate between two handles, if a location shows the same jobs to both. Between the calls the
clock of this process is ahead, right, slightly behind, and far behind.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, SettingsPatch
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.bad_calls import verbs
from dibs_conformance.sequential.client_clock import SHIFT, shifted_clock
from dibs_conformance.target import Locations

#: The name, the section and the sentence of the law.
LAW: Final = (
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
