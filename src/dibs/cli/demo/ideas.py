"""The three demonstrations of `dibs demo`: a blocked duplicate, a retried failure, a killed worker process.

Each demonstration runs real jobs, then reads the event log to report them. In the JSON of `dibs demo --json`
a demonstration is called an idea.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from attrs import frozen

from dibs.cli.demo import tasks
from dibs.errors import DibsError, JobFailed
from dibs.model.error_text import message_of
from dibs.model.events import LogEvent
from dibs.storage.protocol import LATEST, Storage

#: Duration of the busy job at each try, s. Its duplicate must be enqueued while it runs.
BUSY_SECONDS = (0.5, 2.0, 8.0)
#: Time limit of each wait in this module, s.
TIMEOUT = 30.0
FINAL_KINDS = ("completed", "failed", "cancelled")


@frozen
class Idea:
    """The result of a demonstration, as in the JSON of `dibs demo --json`."""

    #: Name of the demonstration: blocked, retried or killed.
    idea: str
    #: True if dibs behaved as expected.
    shown: bool
    #: One sentence for people about the jobs and their times.
    told: str


async def show_blocked(storage: Storage) -> Idea:
    """Enqueue an id again while its first job is active."""
    for seconds in BUSY_SECONDS:
        seen = await end_of_log(storage, "busy")
        busy = tasks.stay_busy.options(id="one-at-a-time")
        await busy.enqueue(seconds)
        await wait_until_active(storage, "busy", "one-at-a-time")
        duplicate = await busy.enqueue(0.0)
        await duplicate.result(wait=TIMEOUT)
        runs = await attempts_since(storage, "busy", seen, duplicate.revision)
        ended = [run for run in runs if run.kind == "completed"]
        # One run is possible, too: if the first run stalled, the duplicate is folded into its repetition. Try
        # again.
        if duplicate.verdict == "blocked" and len(ended) > 1:
            (gap,) = pauses_between_runs(ended[-2:])
            told = f"an id was enqueued again during its run: the second run started {gap} ms after the first"
            return Idea("blocked", gap >= 0, told)
    return Idea("blocked", shown=False, told="the id was never enqueued while its job was active")


async def show_retried(storage: Storage) -> Idea:
    """Enqueue a job that fails until its failure handler runs."""
    seen, handled = await end_of_log(storage, "missing"), await end_of_log(storage, "missing!fail")
    missing = tasks.read_missing.options(id="a-file-that-is-not-there")
    ticket = await missing.enqueue("/a/file/that/is/not/there")
    with suppress(JobFailed):
        await ticket.result(wait=TIMEOUT)
    runs = await attempts_since(storage, "missing", seen, ticket.revision)
    handler = (await attempts_since(storage, "missing!fail", handled))[-1]
    failed = [run for run in runs if run.kind in ("retried", "failed")]
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in pauses_between_runs(failed))
    told = f"a job failed {len(failed)} times, with pauses of {seconds} s; then its failure handler ran"
    return Idea("retried", (runs[-1].kind, handler.kind) == ("failed", "completed"), told)


async def show_killed(storage: Storage) -> Idea:
    """Enqueue a job whose first run kills its worker process. Another process must run it again."""
    seen = await end_of_log(storage, "killed")
    ticket = await tasks.kill_the_worker.options(id="survivor").enqueue()
    run = await ticket.result(wait=TIMEOUT)
    runs = await attempts_since(storage, "killed", seen, ticket.revision)
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in pauses_between_runs(runs))
    told = f"a worker was killed during a job: the job ran again {seconds} s later, and run {run} completed"
    return Idea("killed", [run.kind for run in runs[-2:]] == ["stalled", "completed"], told)


def pauses_between_runs(runs: Sequence[LogEvent]) -> list[int]:
    """Return the time in ms between the end of each run and the claim of the next run."""
    return [(after.claimed_at or 0) - (before.finished_at or 0) for before, after in pairwise(runs)]


async def run_idea(show: Callable[[Storage], Awaitable[Idea]], storage: Storage) -> Idea:
    """Run a demonstration and return its result.

    An error becomes a failed result, so that it does not stop the jobs of the files.
    """
    try:
        return await show(storage)
    except (DibsError, TimeoutError, ValueError) as error:
        name = show.__name__.removeprefix("show_")
        return Idea(name, shown=False, told=f"failed: {type(error).__name__}: {message_of(error)}")


async def end_of_log(storage: Storage, queue: str) -> str:
    """Return the offset of the last event of a queue."""
    return (await storage.events(queue, after=LATEST)).offset


async def wait_until_active(storage: Storage, queue: str, id: str) -> None:
    """Wait until a worker runs the job. Raises TimeoutError after TIMEOUT seconds."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            (slot,) = await storage.get(queue, [id])
            if slot.current is not None and slot.current.run is not None:
                return
            await storage.wait([queue], for_="ids", ids=[id], timeout=0.02)


async def attempts_since(storage: Storage, queue: str, after: str, revision: int = 0) -> list[LogEvent]:
    """Wait until the job of an enqueue has ended, and return the ends of runs in the log after an offset.

    `revision` is the number of that enqueue, `ticket.revision`. Raises TimeoutError after TIMEOUT seconds.
    """
    found: list[LogEvent] = []
    async with asyncio.timeout(TIMEOUT):
        while True:
            page = await storage.events(queue, after=after)
            for _, event in page.events:
                found.append(event)
                if event.kind in FINAL_KINDS and event.revision >= revision:
                    return found
            after = page.offset
            if not page.events:
                await storage.wait([queue], for_="events", timeout=0.1)
