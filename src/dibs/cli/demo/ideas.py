"""Three ideas, shown on live jobs and told from the log: blocked, retried, come back after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from msgspec import Struct

from dibs.cli.demo import tasks
from dibs.errors import DibsError, JobFailed
from dibs.model.events import LogEvent
from dibs.storage.protocol import LATEST, Storage

#: How long the busy job takes; its duplicate is enqueued meanwhile. Longer at each try that came too late.
BUSY = (0.5, 2.0, 8.0)
#: How long anything here may take, s.
PATIENCE = 30.0
ENDS = ("completed", "failed", "cancelled")


class Idea(Struct, frozen=True):
    """One idea, whether it could be shown, and what happened."""

    idea: str
    shown: bool
    told: str


async def show_blocked(storage: Storage) -> Idea:
    """Enqueue a duplicate of an id that is active."""
    for seconds in BUSY:
        seen = await latest(storage, "busy")
        busy = tasks.stay_busy.options(id="one-at-a-time")
        await busy.enqueue(seconds)
        await becomes_active(storage, "busy", "one-at-a-time")
        duplicate = await busy.enqueue(0.0)
        await duplicate.result(wait=PATIENCE)
        runs = await history(storage, "busy", seen, duplicate.revision)
        ended = [run for run in runs if run.kind == "completed"]
        # One end of both would be right, too: that of a run which came back, with the duplicate folded in.
        if duplicate.verdict == "blocked" and len(ended) > 1:
            (gap,) = gaps(ended[-2:])
            told = f"a duplicate of a busy id was blocked; it ran when the first had ended, {gap} ms later"
            return Idea("blocked", gap >= 0, told)
    return Idea("blocked", shown=False, told="no duplicate met the busy job while it was active")


async def show_retried(storage: Storage) -> Idea:
    """Let a job fail until its failure handler gets it."""
    seen, handled = await latest(storage, "missing"), await latest(storage, "missing!fail")
    missing = tasks.read_missing.options(id="a-file-that-is-not-there")
    ticket = await missing.enqueue("/a/file/that/is/not/there")
    with suppress(JobFailed):
        await ticket.result(wait=PATIENCE)
    runs = await history(storage, "missing", seen, ticket.revision)
    handler = (await history(storage, "missing!fail", handled))[-1]
    failed = [run for run in runs if run.kind in ("retried", "failed")]
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in gaps(failed))
    told = f"a missing file failed {len(failed)} times, {seconds} s apart; then its failure handler ran"
    return Idea("retried", (runs[-1].kind, handler.kind) == ("failed", "completed"), told)


async def show_killed(storage: Storage) -> Idea:
    """Kill the process that runs a job."""
    seen = await latest(storage, "killed")
    ticket = await tasks.kill_the_worker.options(id="survivor").enqueue()
    run = await ticket.result(wait=PATIENCE)
    runs = await history(storage, "killed", seen, ticket.revision)
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in gaps(runs))
    told = f"a worker was killed with a job in hand; it came back {seconds} s later, and run {run} ended well"
    return Idea("killed", [run.kind for run in runs[-2:]] == ["stalled", "completed"], told)


def gaps(runs: Sequence[LogEvent]) -> list[int]:
    """Return the ms between the end of each run and the claim of the next."""
    return [(after.claimed_at or 0) - (before.finished_at or 0) for before, after in pairwise(runs)]


async def shown(show: Callable[[Storage], Awaitable[Idea]], storage: Storage) -> Idea:
    """Show an idea; what goes wrong is told, not raised: the files matter more."""
    try:
        return await show(storage)
    except (DibsError, TimeoutError, ValueError) as error:
        name = show.__name__.removeprefix("show_")
        return Idea(name, shown=False, told=f"could not be shown: {type(error).__name__}: {error}")


async def latest(storage: Storage, queue: str) -> str:
    """Return the end of a queue's log."""
    return (await storage.events(queue, after=LATEST)).offset


async def becomes_active(storage: Storage, queue: str, id: str) -> None:
    """Return once a job is active."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (slot,) = await storage.get(queue, [id])
            if slot.current is not None and slot.current.run is not None:
                return
            await storage.wait([queue], for_="ids", ids=[id], timeout=0.02)


async def history(storage: Storage, queue: str, after: str, revision: int = 0) -> list[LogEvent]:
    """Return the attempts in a queue after an offset, up to the end of the enqueue with this revision."""
    found: list[LogEvent] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            page = await storage.events(queue, after=after)
            for _, event in page.events:
                found.append(event)
                if event.kind in ENDS and event.revision >= revision:
                    return found
            after = page.offset
            if not page.events:
                await storage.wait([queue], for_="events", timeout=0.1)
