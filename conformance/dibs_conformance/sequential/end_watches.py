"""Probe of the watches of `dibs.storage.abilities`: when they are called, and with which outcome.

A storage without watches passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import define

from dibs.model.job import Outcome
from dibs.storage.abilities import EndWatches, StopWatching, ability
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

QUEUE: Final = "watched"
#: Seconds until a message has surely arrived.
WAIT_SECONDS: Final = 3.0

#: The calls of a watch.
Calls = asyncio.Queue[Outcome | None]


@define
class Watched:
    """A queue of a storage with watches, and the calls on it."""

    storage: Storage
    watches: EndWatches
    calls: HistoryCalls

    async def play(self, steps: str) -> None:
        await play_steps(self.storage, self.calls, steps)

    def watch(self, id: str, calls: Calls) -> StopWatching | None:
        """Watch the end of the newest enqueue, `it`."""
        return self.watches.watch_end(QUEUE, id, self.calls.saved["it"], calls.put_nowait)


async def check_end_watches(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of stories, and a message for each one with a wrong call."""
    watches = ability(storage, EndWatches)
    if watches is None:
        return len(STORIES), []
    watched = Watched(storage, watches, HistoryCalls(QUEUE))
    await watched.play("grant 60000; set retention=completed:60000")
    # The storage receives messages about a queue from its first wait on. Watches begin after one message.
    since = (await storage.wait([QUEUE], for_="ids", ids=["first"], timeout=0)).since
    await watched.play("enqueue first; claim 1; complete first result=1")
    await storage.wait([QUEUE], for_="ids", ids=["first"], since=since, timeout=WAIT_SECONDS)
    found = [await story(watched) for story in STORIES]
    return len(STORIES), [message for message in found if message]


async def _its_end_is_reported(watched: Watched) -> str:
    calls = Calls()
    await watched.play("it = enqueue a")
    stop = watched.watch("a", calls)
    await watched.play("claim 1; complete a result=1")
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
    await watched.play("enqueue b; claim 1; it = enqueue b")
    stop = watched.watch("b", calls)
    await watched.play("complete b result=1")
    if stop is None:
        return ""
    called, outcome = await _next_call(calls)
    [slot] = await watched.storage.get(QUEUE, ["b"])
    await watched.play("claim 1; complete b result=2")
    if not called:
        return NO_CALL
    good = outcome in (None, slot.outcome)
    return "" if good else f"a watch was called with {outcome}; the ended run has {slot.outcome}"


async def _a_stopped_watch_is_not_called(watched: Watched) -> str:
    calls, other_calls = Calls(), Calls()
    await watched.play("it = enqueue c")
    stop = watched.watch("c", calls)
    other = watched.watch("c", other_calls)
    if stop is not None:
        stop()
    await watched.play("claim 1; complete c result=1")
    if other is not None:
        await _next_call(other_calls)
    return "" if calls.empty() else f"a stopped watch was called with {calls.get_nowait()}"


async def _a_late_watch_does_not_wait(watched: Watched) -> str:
    """A watch that begins after the end returns None, or it is called nevertheless."""
    calls = Calls()
    await watched.play("it = enqueue d; claim 1; complete d result=1")
    if watched.watch("d", calls) is None:
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
