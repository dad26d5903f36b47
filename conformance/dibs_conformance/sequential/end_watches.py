"""Probe of the watches of `dibs.storage.abilities`: when they are called, and with which outcome.

A storage without watches passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import define

from dibs.model.job import Job, JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.abilities import EndWatches, StopWatching, ability
from dibs.storage.protocol import Storage

TTL: Final = 60_000
QUEUE: Final = "watched"
#: Seconds until a message has surely arrived.
WAIT_SECONDS: Final = 3.0
KEPT: Final = OutcomeRetention(completed=TTL, failed=TTL, cancelled=TTL)

#: The calls of a watch.
Calls = asyncio.Queue[Outcome | None]


@define
class Watched:
    """A queue of a storage with watches, and a lease for its runs."""

    storage: Storage
    watches: EndWatches
    lease: str

    async def enqueue(self, id: str) -> int:
        request = EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"0")))
        return (await self.storage.enqueue(QUEUE, [request]))[0].revision

    async def claim(self) -> Job:
        [job] = (await self.storage.claim(QUEUE, self.lease, 1)).jobs
        return job

    async def end(self, job: Job) -> None:
        fence = job.run.fence if job.run else 0
        end = Settlement(id=job.id, fence=fence, action=Complete(result=job.id.encode()))
        await self.storage.settle(QUEUE, [end])

    def watch(self, id: str, revision: int, calls: Calls) -> StopWatching | None:
        return self.watches.watch_end(QUEUE, id, revision, calls.put_nowait)


async def check_end_watches(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of stories, and a message for each one with a wrong call."""
    watches = ability(storage, EndWatches)
    if watches is None:
        return len(STORIES), []
    watched = Watched(storage, watches, (await storage.grant([QUEUE], TTL, "kit")).lease)
    await storage.configure(QUEUE, SettingsPatch(retention=KEPT))
    # The storage receives messages about a queue from its first wait on. Watches begin after one message.
    since = (await storage.wait([QUEUE], for_="ids", ids=["first"], timeout=0)).since
    await watched.enqueue("first")
    await watched.end(await watched.claim())
    await storage.wait([QUEUE], for_="ids", ids=["first"], since=since, timeout=WAIT_SECONDS)
    found = [await story(watched) for story in STORIES]
    return len(STORIES), [message for message in found if message]


async def _its_end_is_reported(watched: Watched) -> str:
    calls = Calls()
    stop = watched.watch("a", await watched.enqueue("a"), calls)
    await watched.end(await watched.claim())
    if stop is None:
        return ""
    called, outcome = await _next_call(calls)
    [slot] = await watched.storage.get(QUEUE, ["a"])
    if called and outcome in (None, slot.outcome):
        return ""
    return f"a watch was called with {outcome}; the stored outcome is {slot.outcome}" if called else NO_CALL


async def _a_blocked_job_gets_no_later_outcome(watched: Watched) -> str:
    """The next end of the id is that of the run before the blocked job, which is then still waiting."""
    calls = Calls()
    await watched.enqueue("b")
    first = await watched.claim()
    stop = watched.watch("b", await watched.enqueue("b"), calls)
    await watched.end(first)
    if stop is None:
        return ""
    called, outcome = await _next_call(calls)
    [slot] = await watched.storage.get(QUEUE, ["b"])
    await watched.end(await watched.claim())
    if not called:
        return NO_CALL
    good = outcome in (None, slot.outcome)
    return "" if good else f"a watch was called with {outcome}; the ended run has {slot.outcome}"


async def _a_stopped_watch_is_not_called(watched: Watched) -> str:
    calls, other_calls = Calls(), Calls()
    revision = await watched.enqueue("c")
    stop = watched.watch("c", revision, calls)
    other = watched.watch("c", revision, other_calls)
    if stop is not None:
        stop()
    await watched.end(await watched.claim())
    if other is not None:
        await _next_call(other_calls)
    return "" if calls.empty() else f"a stopped watch was called with {calls.get_nowait()}"


async def _a_late_watch_does_not_wait(watched: Watched) -> str:
    """A watch that begins after the end returns None, or it is called nevertheless."""
    calls = Calls()
    revision = await watched.enqueue("d")
    await watched.end(await watched.claim())
    if watched.watch("d", revision, calls) is None:
        return ""
    called, _ = await _next_call(calls)
    return "" if called else "a watch began after the end of its run, and was not called"


NO_CALL: Final = "a watch was not called after the end of its run"
STORIES: Final[tuple[Callable[[Watched], Awaitable[str]], ...]] = (
    _its_end_is_reported,
    _a_blocked_job_gets_no_later_outcome,
    _a_stopped_watch_is_not_called,
    _a_late_watch_does_not_wait,
)


async def _next_call(calls: Calls) -> tuple[bool, Outcome | None]:
    """Return whether a watch was called, and with which outcome."""
    try:
        return True, await asyncio.wait_for(calls.get(), WAIT_SECONDS)
    except TimeoutError:
        return False, None
