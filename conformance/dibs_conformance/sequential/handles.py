"""Several handles: storage objects that are open at one location at the same time.

A change through one handle must show in each other one. Random examples make their calls through two handles.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.capabilities import Capabilities
from dibs_conformance.report import SkippedTest
from dibs_conformance.target import Locations

NAME: Final = "several handles"


async def find_reason_to_skip(locations: Locations, claims: Capabilities) -> SkippedTest | None:
    """Return why a location cannot be opened twice, or None if the examples can use two handles.

    A storage with the capability `shared` must allow it. One that is only `durable` may lock its location.
    """
    if claims.shared:
        return None
    if claims.durable:
        return SkippedTest(name=NAME, why="the storage is durable and does not claim the capability `shared`")
    try:
        same = await shows_same_jobs(locations)
    except Exception as error:  # noqa: BLE001 - the examples report what a single handle cannot do
        return SkippedTest(name=NAME, why=f"a second handle cannot be tried: {type(error).__name__}: {error}")
    return None if same else SkippedTest(name=NAME, why="a second opening of a location has jobs of its own")


async def shows_same_jobs(locations: Locations) -> bool:
    """Return whether a job that was enqueued through one handle shows in another one."""
    location = locations.new()
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(locations.open(location, "manual")) for _ in range(2)
        ]
        await first.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1)
        [slot] = await second.get("q", ["a"], now=1)
        return slot.current is not None
